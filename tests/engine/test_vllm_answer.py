"""vLLM's words and ours, without vLLM: the outputs are shaped as it makes them. tests/vllm_cpu has the real ones."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from harness import run_async
from headrace.engine.answer.text import AnswerText
from headrace.engine.answer.think_tags import ThinkTags
from headrace.engine.port import Finish, ModelRequest, Text, Thinking
from headrace.engine.vllm.answer import VllmAnswer, sampling_fields
from headrace.engine.vllm.inprocess import VllmEngine
from headrace.errors import ConfigError, EngineDied
from headrace.messages import Message

ASK = (Message(role="user", content="Hi"),)


def output(text: str, *tokens: int, reason: str | None = None, **more: Any) -> Any:
    answer = SimpleNamespace(text=text, token_ids=tokens, logprobs=more.pop("logprobs", None), finish_reason=reason)
    told = {"prompt_token_ids": [1, 2, 3], "num_cached_tokens": 2, "metrics": None, **more}
    return SimpleNamespace(outputs=[answer], finished=reason is not None, **told)


def answer(likely: int = 0) -> VllmAnswer:
    return VllmAnswer(AnswerText(start=ThinkTags()), likely=likely, started=10.0)


def test_outputs_are_text_and_a_finish_with_what_was_used() -> None:
    reader = answer()
    assert reader.read(output("", 7), 10.2) == []  # half a character
    assert reader.read(output("<think>so</think>", 8), 10.3) == [Thinking("so")]
    assert reader.read(output("帮", 9, 10, reason="length"), 10.5) == [Text("帮")]
    finish = reader.finish(10.5)
    assert (finish.reason, finish.usage.input_tokens, finish.usage.output_tokens) == ("length", 3, 4)
    assert finish.usage.cached_tokens == 2
    assert finish.timing.first_token_ms == pytest.approx(200)
    assert finish.timing.total_ms == pytest.approx(500)


def test_times_are_by_its_own_clock_where_it_tells_them() -> None:
    reader = answer()
    stats = SimpleNamespace(queued_ts=5.0, scheduled_ts=5.01, first_token_ts=5.1, last_token_ts=5.4)
    reader.read(output("a", 7, reason="stop", metrics=stats), 10.2)
    timing = reader.finish(10.5).timing
    assert [timing.queued_ms, timing.prefill_ms, timing.decode_ms] == pytest.approx([10, 90, 300])


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_an_answer_that_was_broken_off_is_no_finish(reason: str | None) -> None:
    reader = answer()
    reader.read(output("a", 7, reason=reason), 10.2)
    with pytest.raises(EngineDied):
        reader.finish(10.3)


def test_log_probabilities_are_of_the_chosen_token_and_of_as_many_likely_ones_as_were_asked_for() -> None:
    def entry(token: str, logprob: float) -> Any:
        return SimpleNamespace(decoded_token=token, logprob=logprob)

    place = {5: entry("c", -3.0), 1: entry("a", -0.1), 2: entry("b", -2.0)}
    (chunk,) = answer(likely=2).read(output("c", 5, logprobs=[place]), 10.1)
    assert isinstance(chunk, Text)
    (token,) = chunk.logprobs
    assert (token.token, token.logprob) == ("c", -3.0)
    assert [(other.token, other.logprob) for other in token.top] == [("a", -0.1), ("b", -2.0)]


def test_a_request_is_spelled_as_vllm_has_it_and_leaves_out_what_nobody_asked() -> None:
    assert sampling_fields(ModelRequest(messages=ASK)) == {"max_tokens": None}
    asked = ModelRequest(messages=ASK, max_tokens=9, min_p=0.1, stop=("END",), logprobs=0, regex="a+")
    assert sampling_fields(asked) == {
        "max_tokens": 9,
        "min_p": 0.1,
        "stop": ["END"],
        "logprobs": 0,
        "structured_outputs": {"regex": "a+"},
    }
    schema = ModelRequest(messages=ASK, json_schema={"type": "object"})
    assert sampling_fields(schema)["structured_outputs"] == {"json": {"type": "object"}}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_says_what_to_install() -> None:
    async def enter() -> Finish | None:
        async with VllmEngine("model"):
            return None

    with pytest.raises(ConfigError) as caught:
        run_async(enter())
    assert "headrace[vllm]" in (caught.value.hint or "")
