"""Tool calls by JSON Schema, for models that were never taught to call tools but can be held to a schema.

The model answers with one JSON object: `{"name": …, "arguments": …}` is a call, `{"reply": …}` is words. The schema
lets nothing else pass, so a call is always of a tool that exists, with arguments by its schema; whether it is the right
tool is the model's affair. One call per answer. A model that may call nothing is held to words all the same: it sees
its earlier calls and would write more of them.

A request becomes another request, and text becomes chunks again; neither waits for anything.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import msgspec

from headrace.engine.openai.chunks import new_call_id
from headrace.engine.port import Chunk, Finish, ModelRequest, Text, ToolCallPart
from headrace.errors import EngineRejected
from headrace.messages import Message, ToolSpec

_CALL = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_REPLY = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_WHOLE = re.compile(r'(?:[^"\\]|\\u[dD][89abAB]\w\w\\u\w{4}|\\u(?![dD][89abAB])\w{4}|\\[^u])*')
"""The beginning of a JSON string's inside that can be decoded: no half escape, no half surrogate pair."""

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
_DEFINITIONS = ("$defs", "definitions")


def by_schema(request: ModelRequest) -> ModelRequest:
    """The same request without tools: they stand in the prompt, and the schema allows their calls.

    Raises EngineRejected for what cannot be asked at the same time.
    """
    messages = tuple(_told(request.messages))
    spoken = msgspec.structs.replace(request, messages=messages, tools=(), tool_choice=None)
    if not request.tools:
        return spoken
    offered, may_reply = _offered(request), request.tool_choice in (None, "auto", "none")
    if request.continued is not None and may_reply:
        return spoken  # it chose to reply before it was cut, so what follows are words
    shapes = (("json_schema", request.json_schema), ("grammar", request.grammar), ("regex", request.regex))
    shape = next((field for field, value in (*shapes, ("continued", request.continued)) if value is not None), None)
    if shape is not None and not offered:
        return spoken
    if shape is not None:
        raise EngineRejected(
            f"This engine calls tools by a schema and cannot follow `{shape}` beside them.",
            hint="Leave one of them out, or set tool_choice to none.",
        )
    return msgspec.structs.replace(
        spoken,
        messages=_instructed(messages, _instructions(offered, may_reply=may_reply)),
        json_schema=_schema(offered, may_reply=may_reply),
    )


def is_by_schema(asked: ModelRequest, sent: ModelRequest) -> bool:
    """Whether the answer to `sent`, which `by_schema` made of `asked`, is the JSON of a call or of words."""
    return asked.json_schema is None and sent.json_schema is not None


def _offered(request: ModelRequest) -> tuple[ToolSpec, ...]:
    if request.tool_choice in (None, "auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name == request.tool_choice)


def _schema(tools: tuple[ToolSpec, ...], *, may_reply: bool) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for number, tool in enumerate(tools):
        arguments, found = _hoisted(tool.parameters or _NO_ARGUMENTS, f"t{number}_")
        definitions |= found
        answers.append(_object(name={"const": tool.name}, arguments={"additionalProperties": False, **arguments}))
    if may_reply:
        answers.append(_object(reply={"type": "string", "minLength": 1}))
    schema: dict[str, Any] = {"anyOf": answers}
    return schema | ({"$defs": definitions} if definitions else {})


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _hoisted(schema: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool's own schema and its definitions, which a reference finds only at the root of the whole."""
    definitions = {prefix + name: one for key in _DEFINITIONS for name, one in schema.get(key, {}).items()}
    rest = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    return _redirected(rest, prefix), _redirected(definitions, prefix)


def _redirected(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_redirected(one, prefix) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: _reference(one, prefix) if key == "$ref" else _redirected(one, prefix) for key, one in value.items()}


def _reference(target: Any, prefix: str) -> Any:
    for key in _DEFINITIONS:
        start = f"#/{key}/"
        if isinstance(target, str) and target.startswith(start):
            return f"#/$defs/{prefix}{target.removeprefix(start)}"
    return target


def _instructions(tools: tuple[ToolSpec, ...], *, may_reply: bool) -> str:
    """Always the same for the same tools, so that a prefix cache keeps it."""
    lines = []
    if tools:
        lines.append("You can use these tools:")
    for tool in tools:
        arguments = json.dumps(tool.parameters or _NO_ARGUMENTS, ensure_ascii=False, sort_keys=True)
        lines.append(f"- {tool.name}: {tool.description} Arguments: {arguments}")
    if tools:
        lines.append('To use one, answer {"name": "the tool", "arguments": {…}}.')
    if may_reply:
        lines.append('To answer in words, answer {"reply": "the words"}.')
    return "\n".join(lines)


def _instructed(messages: tuple[Message, ...], instructions: str) -> tuple[Message, ...]:
    if messages and messages[0].role == "system":
        first = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{instructions}")
        return (first, *messages[1:])
    return (Message(role="system", content=instructions), *messages)


def _told(messages: tuple[Message, ...]) -> Iterator[Message]:
    """The conversation in words: the model's template knows neither calls nor results."""
    names: dict[str | None, str] = {}
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"The result of {names.get(message.call_id, 'the tool')}: {message.content}")
            continue
        if results:
            yield Message(role="user", content="\n".join(results))
            results = []
        names |= {call.call_id: call.name for call in message.tool_calls}
        yield _in_words(message)
    if results:
        yield Message(role="user", content="\n".join(results))


def _in_words(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in message.tool_calls]
    said = [message.content] if message.content else []
    return Message(role=message.role, content="\n".join([*said, *calls]))


class CallsFromJson:
    """Pieces of the JSON object in, chunks out: a call and fragments of its arguments, or the words of the reply."""

    def __init__(self) -> None:
        self.called = False
        self._held = ""
        self._state = "open"
        self._depth = 0
        self._quoted = self._escaped = False

    def feed(self, text: str) -> list[Chunk]:
        self._held += text
        out: list[Chunk] = []
        if self._state == "open":
            out += self._open()
        if self._state == "arguments":
            fragment = self._arguments()
            if fragment:
                out.append(ToolCallPart(index=0, arguments=fragment))
        elif self._state == "reply":
            words = self._words()
            if words:
                out.append(Text(words))
        return out

    def _open(self) -> list[Chunk]:
        if found := _CALL.match(self._held):
            self._state, self.called = "arguments", True
            self._held = self._held[found.end() :]
            return [ToolCallPart(index=0, call_id=new_call_id(), name=json.loads(found[1]))]
        if found := _REPLY.match(self._held):
            self._state = "reply"
            self._held = self._held[found.end() :]
        return []

    def _arguments(self) -> str:
        """What there is of the arguments, up to the bracket that closes them."""
        held, self._held = self._held, ""
        for at, character in enumerate(held):
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = not self._quoted
            elif not self._quoted and character in "{[":
                self._depth += 1
            elif not self._quoted and character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._state = "over"
                    return held[: at + 1]
        return held

    def _words(self) -> str:
        found = _WHOLE.match(self._held)
        whole = found[0] if found else ""
        self._held = self._held[len(whole) :]
        if self._held.startswith('"'):
            self._state = "over"
        words: str = json.loads(f'"{whole}"', strict=False)
        return words


async def calls_from_json(chunks: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk, None]:
    """An answer to a request that `by_schema` made, with its calls."""
    answer = CallsFromJson()
    async for chunk in chunks:
        if isinstance(chunk, Text):
            for part in answer.feed(chunk.text):
                yield part
        elif isinstance(chunk, Finish) and chunk.reason == "stop" and answer.called:
            yield msgspec.structs.replace(chunk, reason="tool_calls")
        else:
            yield chunk
