"""What the two OpenAI requests become, and what bad ones are told."""

from typing import Any

import msgspec
import pytest

from headrace.dialects.openai_chat import chat_start, decode_chat
from headrace.dialects.openai_errors import failure, run_failure
from headrace.dialects.openai_input import Start
from headrace.dialects.openai_response import response_id
from headrace.dialects.openai_responses import decode_response, response_start
from headrace.dialects.openai_shared import run_id_of
from headrace.errors import EngineOverloaded, HeadraceError, InvalidRequest, UnknownAgent
from headrace.events import RunErrored
from headrace.messages import Message, ToolRequest
from legal_runs import RUN_ID
from openai_schema import check

USER = [{"role": "user", "content": "Why?"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> Start:
    return chat_start(decode_chat(msgspec.json.encode({"model": "docs", "messages": USER, **fields})))


def response(**fields: Any) -> Start:
    return response_start(decode_response(msgspec.json.encode({"model": "docs", "input": "Why?", **fields})))


def test_a_chat_conversation_keeps_its_roles_parts_and_calls() -> None:
    start = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
                "name": "x",
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ]
    )
    assert start.agent == "docs"
    assert start.input == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="one\ntwo"),
        Message(role="assistant", tool_calls=(ToolRequest(call_id="c1", name="look_up", arguments="{}"),)),
        Message(role="tool", content="found", call_id="c1"),
    )


def test_chat_options_take_the_engines_names_and_null_is_the_default() -> None:
    start = chat(
        max_tokens=None,
        max_completion_tokens=7,
        temperature=0,
        stop="END",
        seed=3,
        logit_bias={"50256": -100},
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
        unheard_of={"a": 1},
        logprobs=False,
        n=1,
    )
    assert start.options == {
        "max_tokens": 7,
        "temperature": 0,
        "stop": ["END"],
        "seed": 3,
        "logit_bias": {"50256": -100},
        "tool_choice": "look_up",
        "json_schema": {"type": "array"},
    }
    assert start.client_tools[0].name == "look_up"
    assert chat().options == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"the": 1}}, "logit_bias.the"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": "Why?"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"model": None}, "model"),
    ],
)
def test_a_bad_chat_request_is_told_which_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    refused = failure(caught.value)
    assert (refused.status, refused.error.param) == (400, param)
    check("ErrorResponse", refused.body)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"model":"\\ud800","messages":[]}', b'{"model":"docs"}'])
def test_a_body_that_is_no_request_is_a_400(body: bytes) -> None:
    for decode in (decode_chat, decode_response):
        with pytest.raises(InvalidRequest) as caught:
            decode(body)
        assert failure(caught.value).status == 400


def test_response_items_become_one_conversation() -> None:
    start = response(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "look_up", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
        ],
    )
    assert [m.role for m in start.input] == ["user", "assistant", "tool", "tool"]
    assert [call.call_id for call in start.input[1].tool_calls] == ["a", "b"]
    assert start.options == {"instructions": "Be brief."}
    assert start.input[3] == Message(role="tool", content="2", call_id="b")


def test_response_options_and_what_the_object_repeats_are_kept() -> None:
    start = response(
        max_output_tokens=9,
        temperature=0.5,
        background=True,
        metadata={"user": "7"},
        tools=[{"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": True}],
        tool_choice={"type": "function", "name": "look_up"},
        text={"format": {"type": "json_object"}},
        include=["reasoning.encrypted_content"],
    )
    assert start.options == {
        "max_tokens": 9,
        "temperature": 0.5,
        "tool_choice": "look_up",
        "json_schema": {"type": "object"},
    }
    assert start.metadata == {"user": "7", "openai": {"background": True, "format": {"type": "json_object"}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"metadata": {"openai": "x"}}, "metadata.openai"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
    ],
)
def test_a_bad_response_request_is_told_which_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response(**fields)
    assert failure(caught.value).error.param == param


def test_a_response_id_leads_back_to_its_run_and_nothing_else_does() -> None:
    assert run_id_of(response_id(RUN_ID), "resp_") == RUN_ID
    for foreign in ("resp_1", "resp_", RUN_ID, "chatcmpl-01939bdc7c1e7a3b8f000123456789ab"):
        assert run_id_of(foreign, "resp_") is None


def _all_errors(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _all_errors(sub))]


@pytest.mark.parametrize("cls", _all_errors(HeadraceError))
def test_every_error_has_a_status_and_a_body_of_the_schema(cls: type[HeadraceError]) -> None:
    refused = failure(cls("It went wrong.", hint="Do this."))
    assert 400 <= refused.status < 600
    assert refused.error.message == "It went wrong. Do this."
    check("ErrorResponse", refused.body)


def test_errors_have_the_codes_that_other_peoples_programs_look_for() -> None:
    unknown = failure(UnknownAgent("There is no agent gpt-4."))
    assert (unknown.status, unknown.error.code, unknown.error.param) == (404, "model_not_found", "model")
    assert failure(EngineOverloaded("Busy.")).status == 429
    overflow = run_failure(RunErrored(code="context_overflow", message="Too long."))
    assert (overflow.status, overflow.error.code, overflow.retryable) == (400, "context_length_exceeded", False)
