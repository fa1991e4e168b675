"""What servers send, and what we make of it. Each case was seen in a real server."""

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_events import translate
from fake_upstream import delta
from headrace.engine.answer.halves import Halves
from headrace.engine.openai.chunks import CompletionChunks
from headrace.engine.port import Chunk, Finish, Text, Thinking, TokenLogprob, ToolCallPart
from headrace.engine.seam import Seam
from headrace.errors import ContextOverflow, EngineDied, EngineError, EngineOverloaded, EngineProtocol, EngineRejected

STOP = delta("stop")


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


def thinking_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Thinking))


def finish_of(chunks: list[Chunk]) -> Finish:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1]


def call(**entry: Any) -> dict[str, object]:
    return delta(tool_calls=[entry])


def calls_of(chunks: list[Chunk]) -> list[tuple[str | None, str | None, str]]:
    """(id, name, joined arguments) of each call; checks that id and name come first and only once."""
    calls: list[tuple[str | None, str | None, str]] = []
    for part in (chunk for chunk in chunks if isinstance(chunk, ToolCallPart)):
        if part.index == len(calls):
            assert part.call_id
            assert part.name
            calls.append((part.call_id, part.name, part.arguments))
        else:
            assert (part.call_id, part.name) == (None, None)
            call_id, name, arguments = calls[part.index]
            calls[part.index] = (call_id, name, arguments + part.arguments)
    return calls


# Text and reasoning


def test_empty_and_missing_contents_make_no_chunk() -> None:
    assert (
        len(translate(delta(role="assistant", content=""), delta(content=None), delta(), delta(content="a"), STOP)) == 2
    )


def test_a_delta_with_reasoning_and_content_gives_both_reasoning_first() -> None:
    chunks = translate(delta(reasoning="final thought.", content="Answer starts."), STOP)
    assert chunks[:2] == [Thinking("final thought."), Text("Answer starts.")]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_without_content_is_kept_under_either_name(field: str) -> None:
    chunks = translate(delta(**{field: "hm", "content": None}), delta(**{field: "m"}), delta(content="yes"), STOP)
    assert (thinking_of(chunks), text_of(chunks)) == ("hmm", "yes")


def test_reasoning_sent_under_both_names_is_taken_once() -> None:
    assert thinking_of(translate(delta(reasoning="x", reasoning_content="x"), STOP)) == "x"


def test_reasoning_in_details_is_thinking() -> None:
    details = [{"type": "reasoning.text", "text": "h"}, {"type": "reasoning.summary", "summary": "m"}]
    assert thinking_of(translate(delta(reasoning_details=details), STOP)) == "hm"
    assert thinking_of(translate(delta(reasoning="hm", reasoning_details=details), STOP)) == "hm"


def test_a_content_in_parts_may_hold_thinking() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    assert translate(delta(content=parts), STOP)[:-1] == [Thinking("hm"), Text("yes")]


@pytest.mark.parametrize(
    ("opens", "closes"),
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"), ("[THINK]", "[/THINK]")],
)
def test_thinking_is_known_by_every_pair_of_tags_that_is_in_use(opens: str, closes: str) -> None:
    chunks = translate(*(delta(content=c) for c in f"{opens}a </b> c{closes}yes"), STOP)
    assert (thinking_of(chunks), text_of(chunks)) == ("a </b> c", "yes")


THOUGHT = "<think>\nIt is 帮 < 3, </thin or so</think>\n\nThe answer: <think>is a tag</think>."


@given(st.lists(st.integers(0, len(THOUGHT))))
def test_think_tags_are_found_however_the_text_is_cut(cuts: list[int]) -> None:
    edges = sorted({0, len(THOUGHT), *cuts})
    chunks = translate(*(delta(content=THOUGHT[a:b]) for a, b in itertools.pairwise(edges)), STOP)
    assert thinking_of(chunks) == "It is 帮 < 3, </thin or so"
    assert text_of(chunks) == "The answer: <think>is a tag</think>."
    assert all(chunk.text for chunk in chunks if isinstance(chunk, Text | Thinking))


def test_the_rest_of_an_answer_does_not_begin_with_thinking_whatever_it_looks_like() -> None:
    chunks = CompletionChunks(start=Seam("")).feed(json.dumps(delta(content="<think>")))
    assert chunks == [Text("<think>")]


@pytest.mark.parametrize("text", ["<thin", " <b>bold</b>", "<", "\n", "a <think>b</think>"])
def test_text_that_is_no_think_tag_stays_as_it_is(text: str) -> None:
    chunks = translate(*(delta(content=c) for c in text), STOP)
    assert (text_of(chunks), thinking_of(chunks)) == (text, "")


def test_thinking_that_never_ends_is_still_thinking() -> None:
    chunks = translate(delta(content="<think>on and on </th"), delta("length"))
    assert (thinking_of(chunks), finish_of(chunks).reason) == ("on and on </th", "length")


def test_a_surrogate_pair_cut_into_two_events_is_one_character() -> None:
    halves = (f'{{"choices":[{{"delta":{{"content":"{half}"}}}}]}}' for half in ("a\\ud83d", "\\ude00b"))
    chunks = translate(*halves, STOP)
    assert text_of(chunks) == "a😀b"
    assert all(chunk.text.isprintable() for chunk in chunks if isinstance(chunk, Text))


def test_half_a_surrogate_pair_that_stays_alone_is_marked() -> None:
    assert text_of(translate('{"choices":[{"delta":{"content":"a\\ud83d"}}]}', STOP)) == "a\ufffd"


def test_a_character_whose_bytes_stand_in_two_events_is_whole() -> None:
    first, second = (
        '{"choices":[{"delta":{"content":"a\udce5\udcb8"}}]}',
        '{"choices":[{"delta":{"content":"\udcaeb"}}]}',
    )
    chunks = translate(first, second, delta(content="é"), STOP)
    assert text_of(chunks) == "a帮bé"
    assert all(chunk.text for chunk in chunks if isinstance(chunk, Text))


def test_bytes_that_never_become_a_character_are_marked() -> None:
    assert text_of(translate('{"choices":[{"delta":{"content":"a\udce5"}}]}', delta(content="b"), STOP)) == "a\ufffdb"
    assert text_of(translate('{"choices":[{"delta":{"content":"a\udce5"}}]}', STOP)) == "a\ufffd"


@given(st.text(max_size=8), st.lists(st.integers(0, 40)), st.booleans())
def test_halves_joined_are_the_text_however_it_was_cut(text: str, cuts: list[int], utf16: bool) -> None:
    if utf16:
        raw = text.encode("utf-16-le")
        units = [raw[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(raw), 2)]
    else:
        units = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in text.encode()]
    edges = sorted({0, len(units), *(cut % (len(units) + 1) for cut in cuts)})
    halves = Halves()
    joined = [halves.join("text", "".join(units[a:b])) for a, b in itertools.pairwise(edges)]
    assert "".join(joined) + halves.end("text") == text


def test_content_in_parts_is_joined() -> None:
    assert (
        text_of(translate(delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), STOP)) == "ab"
    )


def test_the_text_of_a_raw_completion_is_text() -> None:
    raw = {"object": "text_completion", "choices": [{"index": 0, "text": "Once", "finish_reason": None}]}
    assert text_of(translate(raw, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})) == "Once"


def test_a_whole_message_in_one_document_is_read_like_a_stream() -> None:
    message = {"content": "All.", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    chunks = translate({"choices": [{"message": message, "finish_reason": "tool_calls"}]}, done=False)
    assert (text_of(chunks), calls_of(chunks)) == ("All.", [("c", "f", "{}")])


def test_only_the_first_of_several_choices_is_read() -> None:
    both = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    assert text_of(translate(both, STOP)) == "yes"


# Log probabilities


def probable(token: str, logprob: float, *top: tuple[str, float]) -> dict[str, Any]:
    others = [{"token": t, "logprob": p} for t, p in top]
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": others}


def with_logprobs(*tokens: dict[str, Any], **fields: Any) -> dict[str, Any]:
    event: dict[str, Any] = delta(**fields)
    event["choices"][0]["logprobs"] = {"content": list(tokens)}
    return event


def test_a_pieces_log_probabilities_are_those_of_its_tokens_with_the_likeliest_others() -> None:
    first, *_ = translate(with_logprobs(probable("Hi", -0.5, ("Hi", -0.5), ("Yo", -2.0)), content="Hi"), STOP)
    assert first == Text(
        "Hi",
        (
            TokenLogprob(
                token="Hi",
                logprob=-0.5,
                data=b"Hi",
                top=(TokenLogprob(token="Hi", logprob=-0.5), TokenLogprob(token="Yo", logprob=-2.0)),
            ),
        ),
    )


def test_log_probabilities_of_a_text_that_is_held_come_with_it_and_those_of_thinking_do_not() -> None:
    chunks = translate(
        with_logprobs(probable("hm", -9.0), reasoning="hm"),
        with_logprobs(probable("EN", -0.5), content="EN"),
        with_logprobs(probable("E", -0.25), content="E"),
        STOP,
        stops=("END",),
    )
    said = [chunk for chunk in chunks if isinstance(chunk, Text)]
    assert [(chunk.text, [token.token for token in chunk.logprobs]) for chunk in said] == [
        ("EN", ["EN", "E"]),
        ("E", []),
    ]


def test_the_log_probabilities_of_raw_completions_are_read_too() -> None:
    sent = {"tokens": ["a", "b"], "token_logprobs": [-0.5, None], "top_logprobs": [{"x": -1.0, "a": -0.5}, None]}
    chunks = translate({"choices": [{"index": 0, "text": "ab", "logprobs": sent, "finish_reason": "stop"}]})
    assert isinstance(chunks[0], Text)
    (token,) = chunks[0].logprobs
    assert (token.token, token.logprob, [other.token for other in token.top]) == ("a", -0.5, ["a", "x"])


# Tool calls

A = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"x":'}}
A2 = {"index": 0, "function": {"arguments": "1}"}}
B = {"index": 1, "id": "b", "function": {"name": "get_time", "arguments": ""}}
B2 = {"index": 1, "function": {"arguments": "{}"}}
BOTH = [("a", "get_weather", '{"x":1}'), ("b", "get_time", "{}")]


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def test_calls_by_the_book_and_interleaved_are_told_apart_by_index() -> None:
    assert calls_of(translate(call(**A), call(**A2), call(**B), call(**B2), STOP)) == BOTH
    assert calls_of(translate(call(**A), call(**B), call(**A2), call(**B2), STOP)) == BOTH
    assert calls_of(translate(delta(tool_calls=[A, B]), delta(tool_calls=[B2, A2]), STOP)) == BOTH


def test_fragments_without_index_go_to_the_latest_call() -> None:
    fragments = [without(f, "index") for f in (A, A2, B, B2)]
    assert calls_of(translate(*(call(**f) for f in fragments), STOP)) == BOTH


def test_indexed_and_index_less_fragments_may_be_mixed() -> None:
    chunks = translate(call(**A), call(**A2), call(**without(B, "index")), call(**without(B2, "index")), STOP)
    assert calls_of(chunks) == BOTH


def test_parallel_calls_that_all_have_index_zero_are_told_apart_by_id() -> None:
    chunks = translate(call(**A), call(**A2), call(**{**B, "index": 0}), call(**{**B2, "index": 0}), STOP)
    assert calls_of(chunks) == BOTH


def test_a_name_repeated_in_every_fragment_is_one_name() -> None:
    fragments = ({"index": 0, "function": {"name": "f", "arguments": part}} for part in ("{", '"a":1', "}"))
    assert calls_of(translate(*(call(**f) for f in fragments), STOP)) == [("made-0", "f", '{"a":1}')]


def test_an_id_inside_function_and_repeated_is_one_id() -> None:
    fragments = ({"index": 0, "function": {"id": "x", "name": "f", "arguments": part}} for part in ("{", "}"))
    assert calls_of(translate(*(call(**f) for f in fragments), STOP)) == [("x", "f", "{}")]


def test_two_whole_calls_of_one_tool_without_ids_are_two_calls() -> None:
    fragments = ({"function": {"name": "f", "arguments": part}} for part in ('{"a":1}', '{"a":2}'))
    chunks = translate(*(call(**f) for f in fragments), STOP)
    assert calls_of(chunks) == [("made-0", "f", '{"a":1}'), ("made-1", "f", '{"a":2}')]


@pytest.mark.parametrize("habit", [(), ("index",), ("id",)])
def test_two_whole_calls_in_one_event_are_both_whole(habit: tuple[str, ...]) -> None:
    whole = [A | {"function": {"name": "get_weather", "arguments": '{"x":1}'}}]
    whole += [B | {"function": {"name": "get_time", "arguments": "{}"}}]
    entries = [without(entry, *habit) for entry in whole]
    for chunks in (translate(delta(tool_calls=entries), STOP), translate(*(call(**e) for e in entries), STOP)):
        assert [(name, arguments) for _, name, arguments in calls_of(chunks)] == [c[1:] for c in BOTH]


def test_a_fragment_without_id_and_name_never_begins_a_call() -> None:
    broken = {"index": 1, "id": None, "function": {"name": None, "arguments": '{"command":"x{"'}}
    chunks = translate(call(index=0, id="c", function={"name": "bash", "arguments": ""}), call(**broken), STOP)
    assert calls_of(chunks) == [("c", "bash", '{"command":"x{"')]


def test_an_id_first_and_the_name_later_begin_one_call() -> None:
    chunks = translate(
        call(index=0, id="c", function={"arguments": "{"}),
        call(index=0, function={"name": "f", "arguments": "}"}),
        STOP,
    )
    assert calls_of(chunks) == [("c", "f", "{}")]


def test_an_id_that_comes_after_the_name_changes_nothing() -> None:
    chunks = translate(
        call(index=0, function={"name": "f", "arguments": "{"}),
        call(index=0, id="c", function={"arguments": "}"}),
        STOP,
    )
    assert calls_of(chunks) == [("made-0", "f", "{}")]


def test_arguments_that_are_an_object_become_its_text() -> None:
    assert calls_of(translate(call(id="c", function={"name": "f", "arguments": {"a": "帮"}}), STOP)) == [
        ("c", "f", '{"a":"帮"}')
    ]


def test_empty_fragments_are_nothing() -> None:
    empty: list[dict[str, Any]] = [{}, {"index": 0}, {"index": 0, "function": None}, {"function": {"arguments": ""}}]
    assert calls_of(
        translate(*(call(**f) for f in empty), call(**A), *(call(**f) for f in empty), call(**A2), STOP)
    ) == [BOTH[0]]


def test_a_fragment_after_the_stop_still_belongs_to_its_call() -> None:
    assert calls_of(translate(call(**A), delta("tool_calls"), call(**A2))) == [BOTH[0]]


def test_the_old_function_call_field_is_a_call() -> None:
    chunks = translate(
        delta(function_call={"name": "f", "arguments": "{"}), delta(function_call={"arguments": "}"}), STOP
    )
    assert calls_of(chunks) == [("made-0", "f", "{}")]


def test_arguments_of_no_call_and_a_call_without_a_name_are_errors() -> None:
    with pytest.raises(EngineProtocol, match="never began"):
        translate(call(index=0, function={"arguments": "{}"}), STOP)
    with pytest.raises(EngineProtocol, match="never named"):
        translate(call(index=0, id="c"), STOP)


ARGUMENTS = '{"city":"Köln","days":[1,2,3],"note":"a \\"b\\" 😀"}'


@given(st.lists(st.integers(0, len(ARGUMENTS)), max_size=12), st.sampled_from(["book", "no index", "name always"]))
def test_arguments_cut_anywhere_are_whole_again(cuts: list[int], habit: str) -> None:
    edges = [0, *sorted(cuts), len(ARGUMENTS)]
    events = []
    for number, (a, b) in enumerate(itertools.pairwise(edges)):
        function = {"arguments": ARGUMENTS[a:b]} | ({"name": "f"} if number == 0 or habit == "name always" else {})
        entry = {"function": function} | ({} if habit == "no index" else {"index": 0})
        events.append(call(**entry, **({"id": "c"} if number == 0 else {})))
    assert calls_of(translate(*events, STOP)) == [("c", "f", ARGUMENTS)]


# Endings


def test_a_stop_after_calls_is_tool_calls() -> None:
    assert finish_of(translate(call(**A), call(**A2), STOP)).reason == "tool_calls"
    assert finish_of(translate(call(**A), delta("length"))).reason == "length"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "stop"),
        ("eos", "stop"),
        ("content_filter", "content_filter"),
    ],
)
def test_every_finish_reason_has_a_meaning(sent: str, meant: str) -> None:
    assert finish_of(translate(delta(content="a"), delta(sent))).reason == meant


def test_the_finish_reason_is_kept_beside_other_fields() -> None:
    last = {"choices": [{"delta": {"content": ""}, "logprobs": None, "finish_reason": "stop"}]}
    assert finish_of(translate(delta(content="a"), last)).reason == "stop"


def test_chunks_without_a_finish_reason_key_are_read() -> None:
    assert text_of(translate({"choices": [{"delta": {"content": "a"}}]}, STOP)) == "a"


def test_a_stream_without_done_is_whole_once_it_has_finished() -> None:
    assert finish_of(translate(delta(content="a"), STOP, done=False)).reason == "stop"


def test_a_stream_without_done_and_finish_died() -> None:
    with pytest.raises(EngineDied):
        translate(delta(content="a"), done=False)


def test_a_stream_with_nothing_but_done_died() -> None:
    with pytest.raises(EngineDied):
        translate()


def test_done_without_a_finish_reason_ends_what_was_said() -> None:
    assert finish_of(translate(delta(content="a"))).reason == "stop"


def test_an_aborted_answer_died() -> None:
    with pytest.raises(EngineDied, match="abort"):
        translate(delta(content="a"), delta("abort"))


# Usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}


@pytest.mark.parametrize(
    "last",
    [
        [STOP, {"choices": [], "usage": USAGE}],
        [STOP, {"usage": USAGE}],
        [{**delta("stop", content="!"), "usage": USAGE}],
        [{**STOP, "usage": None}, {"choices": None, "usage": USAGE}],
    ],
)
def test_usage_is_read_with_without_and_beside_choices(last: list[object]) -> None:
    chunks = translate(delta(content="a"), *last)
    usage = finish_of(chunks).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (7, 3, 5)
    assert text_of(chunks) in ("a", "a!")


def test_llama_cpp_says_what_was_cached_in_its_timings() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    completion = CompletionChunks()
    completion.feed(json.dumps(STOP))
    completion.feed(
        json.dumps({"choices": [], "usage": usage, "timings": {"cache_n": 6, "prompt_ms": 12.5, "predicted_ms": 3}})
    )
    assert finish_of(completion.finish()).usage.cached_tokens == 6
    assert (completion.prompt_ms, completion.decode_ms) == (12.5, 3.0)


# Errors inside a stream


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        ({"message": "context size exceeded", "n_ctx": 2048}, ContextOverflow),
        ({"code": 400, "message": "the request exceeds", "type": "exceed_context_size_error"}, ContextOverflow),
        ({"code": "context_length_exceeded", "message": "too long"}, ContextOverflow),
        ({"code": 400, "message": "bad request"}, EngineRejected),
        ({"code": "400", "message": "bad request"}, EngineRejected),
        ({"type": "invalid_request_error", "message": "no"}, EngineRejected),
        ({"code": 429, "message": "slow down"}, EngineOverloaded),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, EngineOverloaded),
        ({"code": 429, "type": "insufficient_quota", "message": "pay"}, EngineRejected),
        ({"code": 500, "message": "CUDA error"}, EngineDied),
        ("it broke", EngineDied),
    ],
)
def test_an_error_inside_the_stream_is_raised_by_its_meaning(error: object, meaning: type[EngineError]) -> None:
    with pytest.raises(meaning) as caught:
        translate(delta(content="abc"), {"error": error})
    said = error["message"] if isinstance(error, dict) else error
    assert str(said) in caught.value.message


def test_an_error_event_and_an_error_object_are_errors_too() -> None:
    with pytest.raises(EngineRejected, match="no such thing"):
        CompletionChunks().feed('{"code": 400, "message": "no such thing"}', event="error")
    with pytest.raises(EngineRejected, match="no such thing"):
        translate({"object": "error", "code": 400, "message": "no such thing"})


def test_length_is_the_output_cap_and_no_overflow() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    assert finish_of(translate(delta(content="five"), delta("length"), usage)).reason == "length"


def test_a_prompt_that_leaves_no_room_is_an_overflow() -> None:
    with pytest.raises(ContextOverflow):
        translate(delta("length"), {"choices": [], "usage": {"prompt_tokens": 4096, "completion_tokens": 0}})


@pytest.mark.parametrize("data", ["<html>", "42", '{"choices": [', "null"])
def test_what_is_no_json_object_is_a_protocol_error(data: str) -> None:
    with pytest.raises(EngineProtocol):
        translate(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "content",
                        "tool_calls",
                        "function",
                        "id",
                        "index",
                        "name",
                        "usage",
                        "logprobs",
                        "token",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_at_all_gives_chunks_or_one_of_our_errors(value: object) -> None:
    completion = CompletionChunks()
    for event in (value, {"choices": value}, {"choices": [value]}, delta(tool_calls=value), delta(content=value)):
        with contextlib.suppress(EngineError):
            completion.feed(json.dumps(event))
    with contextlib.suppress(EngineError):
        completion.finish()
