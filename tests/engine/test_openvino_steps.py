"""OpenVINO's library with the real SmolLM2, step by step in this process: what its cache takes, who shares a step."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.config import EngineConfig
from headrace.config.tree import KvType
from headrace.engine import models
from headrace.engine.openvino.engine import OpenVinoEngine
from headrace.engine.openvino.parameters import OpenVinoParameters
from headrace.engine.stepped.lines import Generate, Sampling
from headrace.engines import configured_engine

if TYPE_CHECKING:
    from headrace.engine.openvino.model import OpenVinoGeneration

pytestmark = pytest.mark.model

SLOTS, CONTEXT, PAGE = 3, 2048, 32
ENDLESS = Sampling(temperature=0.0, grammar='root ::= (" " [a-z]{1,12}){300}')


def as_configured(kv: KvType | None = None) -> OpenVinoParameters:
    models.install("smollm2")
    engine = configured_engine(EngineConfig(embedded="openvino", slots=SLOTS, context_tokens=CONTEXT, threads=1, kv=kv))
    assert isinstance(engine, OpenVinoEngine)
    return engine.parameters()


class Watched:
    """A model, and what the library says of itself."""

    def __init__(self, parameters: OpenVinoParameters) -> None:
        from headrace.engine.openvino.model import OpenVinoModel

        self.parameters = parameters
        self.model = OpenVinoModel(parameters)
        self.answers: list[OpenVinoGeneration] = []

    def tokens(self, prompt: str) -> list[int]:
        return self.model.tokens(Generate(id=1, prompt=prompt))

    def add(self, tokens: list[int], max_tokens: int = 200) -> "OpenVinoGeneration":
        self.answers.append(self.model.add(tokens, Generate(id=1, sampling=ENDLESS), max_tokens=max_tokens))
        return self.answers[-1]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.model.step()

    def steps_to_the_first_token(self, generation: "OpenVinoGeneration") -> int:
        for steps in range(1, CONTEXT):
            self.step()
            if generation.read()[0]:
                return steps
        raise AssertionError("it never speaks")

    @property
    def metrics(self) -> Any:
        return self.model._pipeline.get_metrics()

    @property
    def pages(self) -> int:
        """That answers hold now; what is kept of earlier ones is given to whoever needs it."""
        percent: float = self.metrics.cache_usage
        return round(percent / 100 * SLOTS * CONTEXT / PAGE)

    @property
    def cache_size(self) -> int:
        """In bytes, of all pages. They are there once a step has been computed."""
        return int(self.metrics.kv_cache_size_in_bytes)


@pytest.fixture(scope="module")
def watched() -> Watched:
    pytest.importorskip("openvino_genai")
    watched = Watched(as_configured())
    generation = watched.add(watched.tokens("Hi"), 1)
    watched.step()
    assert generation.read()[1] is not None
    return watched


@pytest.fixture(autouse=True)
def _leaves_nothing(watched: Watched) -> Iterator[None]:
    yield
    while watched.answers:
        watched.answers.pop().cancel()
    watched.step(2)
    assert (watched.metrics.requests, watched.pages) == (0, 0)


def test_the_cache_is_of_8_bits_unless_something_else_is_asked_for(watched: Watched) -> None:
    """A number takes a byte and its share of the scales: 59 % of 16 bits with this model."""
    wide = Watched(as_configured("f16"))
    generation = wide.add(wide.tokens("Hi"), 1)
    wide.step()
    assert generation.read()[1] is not None
    numbers = 2 * 30 * 3 * 64 * SLOTS * CONTEXT  # keys and values, layers, heads, each head, tokens
    assert wide.cache_size == 2 * numbers
    assert numbers < watched.cache_size < 0.6 * wide.cache_size
    assert OpenVinoEngine(models.install("smollm2")).parameters().kv == watched.parameters.kv


def test_answers_take_pages_as_they_need_them_and_share_those_of_one_beginning(watched: Watched) -> None:
    start = list(range(1000, 1000 + 10 * PAGE))
    for count in range(1, SLOTS + 1):
        watched.steps_to_the_first_token(watched.add([*start, 100 + count]))
        assert watched.pages == 10 + count
    watched.step(PAGE)
    assert watched.pages == 10 + 2 * SLOTS


def test_the_second_turn_of_a_thread_reads_only_what_is_new(watched: Watched) -> None:
    asked = watched.tokens("What may nobody do with this work? " * 60)
    in_parts = -(-len(asked) // watched.parameters.batch_tokens)
    assert in_parts > 8
    answer = watched.add(asked, 40)
    assert watched.steps_to_the_first_token(answer) == in_parts
    watched.step(40)
    thread = asked + answer.read()[0] + watched.tokens("And what may everybody do?")
    assert watched.steps_to_the_first_token(watched.add(thread, 1)) <= 2


def test_a_step_is_a_token_of_every_answer(watched: Watched) -> None:
    answers = [watched.add(watched.tokens(prompt)) for prompt in ("One two", "Red green", "Monday Tuesday")]
    watched.step()
    for answer in answers:
        answer.read()
    watched.step(10)
    assert [len(answer.read()[0]) for answer in answers] == [10] * SLOTS


def test_who_reads_a_long_prompt_holds_up_nobody(watched: Watched) -> None:
    short = watched.add(watched.tokens("Once upon a time"))
    watched.step()
    assert short.read()[0]
    prompt = watched.tokens("six seven eight nine ten " * 320)
    assert len(prompt) >= 1500
    long = watched.add(prompt, 1)
    said: list[int] = []
    while not long.read()[0]:
        watched.step()
        said.append(len(short.read()[0]))
    assert set(said) == {1}
    assert len(said) >= len(prompt) // watched.parameters.batch_tokens


def test_what_a_cancelled_answer_held_is_free_after_a_step(watched: Watched) -> None:
    left, stays = (watched.add(watched.tokens(prompt)) for prompt in ("word " * 100, "Once upon a time"))
    watched.steps_to_the_first_token(left)
    held = watched.pages
    left.cancel()
    watched.step(2)
    assert watched.pages <= held - 3
    assert stays.read()[0]
    assert left.read()[0] == []
