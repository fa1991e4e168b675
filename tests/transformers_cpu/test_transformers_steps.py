"""Both ways of driving a model, step by step in this process: what is computed, for whom, and when no more."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine.stepped.lines import Generate, Sampling
from headrace.engine.transformers.model.loading import load
from headrace.engine.transformers.model.paged import PagedModel
from headrace.engine.transformers.model.separate import SeparateModel
from headrace.engine.transformers.parameters import Kv, TransformersParameters

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own

GREEDY = Sampling(temperature=0.0)
CONTEXT = 512
Model = PagedModel | SeparateModel


class Watched:
    """A model, and how often it has computed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.library: Any = model._loaded.library
        self.computed = 0
        self.library.register_forward_pre_hook(self._count)

    def add(self, prompt: str, max_tokens: int) -> Any:
        request = Generate(id=1, prompt=prompt, sampling=GREEDY)
        return self.model.add(self.model.tokens(request), request, max_tokens=max_tokens)

    def _count(self, *args: object) -> None:
        self.computed += 1


def parameters_for(
    model: Path, states: Path, *, snapshot_tokens: int | None, kv: Kv = "full"
) -> TransformersParameters:
    return TransformersParameters(
        model_path=str(model),
        threads=1,
        context=CONTEXT,
        slots=2,
        parent=0,
        weights="full",
        kv=kv,
        snapshots=str(states),
        snapshot_tokens=snapshot_tokens,
    )


@pytest.fixture(scope="module", params=["paged", "separate"])
def watched(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    states = tmp_path_factory.mktemp("states")
    parameters = parameters_for(tiny, states, snapshot_tokens=None if request.param == "paged" else 1000)
    model = load(parameters)
    assert isinstance(model, PagedModel if request.param == "paged" else SeparateModel)
    return Watched(model)


def read_to_the_end(watched: Watched, generation: Any) -> list[int]:
    said: list[int] = []
    for _ in range(CONTEXT):
        watched.model.step()
        ids, reason = generation.read()
        said += ids
        if reason is not None:
            return said
    raise AssertionError("it has no end")


def test_an_answer_is_the_one_that_the_library_itself_generates(watched: Watched) -> None:
    prompt = "You may reproduce and distribute copies of the Work " * 12  # in more than one part
    ids = torch.tensor([watched.model.tokens(Generate(id=1, prompt=prompt))])
    assert ids.shape[1] > 130
    said = read_to_the_end(watched, watched.add(prompt, 24))
    attention = watched.library.config._attn_implementation
    watched.library.set_attn_implementation("sdpa")
    expected = watched.library.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    watched.library.set_attn_implementation(attention)
    assert said == expected[0, ids.shape[1] :].tolist()


def test_nothing_is_computed_for_an_answer_that_was_cancelled(watched: Watched) -> None:
    generation = watched.add("Once upon a time", 100)
    for _ in range(3):
        watched.model.step()
    generation.cancel()
    watched.model.step()
    before = watched.computed
    for _ in range(3):
        watched.model.step()
    assert watched.computed == before


def test_cancelled_answers_leave_room_for_others(watched: Watched) -> None:
    for _ in range(12):
        generation = watched.add("word " * 150, 100)
        watched.model.step()
        generation.cancel()
    assert len(read_to_the_end(watched, watched.add("word " * 150, 100))) == 100


def test_who_reads_a_long_prompt_holds_up_nobody(watched: Watched) -> None:
    short = watched.add("Hi", 60)
    watched.model.step()
    assert short.read()[0]
    long = watched.add("the Work and such Derivative Works in Source or Object form " * 14, 2)
    steps = 0
    while not long.read()[0]:
        watched.model.step()
        steps += 1
        assert len(short.read()[0]) == 1
    assert steps > 1, "it was read in parts"
    short.cancel()
    long.cancel()
    watched.model.step()


def test_a_step_is_one_computation_for_a_whole_batch_and_one_for_each_where_answers_are_separate(
    watched: Watched,
) -> None:
    answers = [watched.add(prompt, 50) for prompt in ("One", "Two")]
    watched.model.step()
    before = watched.computed
    for _ in range(5):
        watched.model.step()
    assert watched.computed - before == (5 if isinstance(watched.model, PagedModel) else 10)
    assert [len(answer.read()[0]) for answer in answers] == [6, 6]
    for answer in answers:
        answer.cancel()
    watched.model.step()


def test_a_cache_of_8_bits_takes_little_more_than_a_quarter_of_the_memory(tiny: Path, tmp_path: Path) -> None:
    size: dict[Kv, int] = {}
    kinds: tuple[Kv, ...] = ("full", "int8")
    for kv in kinds:
        model = load(parameters_for(tiny, tmp_path, snapshot_tokens=1000 if kv == "full" else None, kv=kv))
        assert isinstance(model, SeparateModel)
        answer = Watched(model).add("word " * 100, 4)
        model.step()
        size[kv] = sum(tensor.nbytes for layer in answer._cache.layers for tensor in layer.state().values())
    assert size["int8"] < 0.28 * size["full"]


def test_a_disk_that_takes_no_states_costs_no_answer(tiny: Path, tmp_path: Path) -> None:
    model = load(parameters_for(tiny, tmp_path / "states", snapshot_tokens=4))
    shutil.rmtree(tmp_path / "states")
    watched = Watched(model)
    assert len(read_to_the_end(watched, watched.add("Once upon a time", 20))) == 20
