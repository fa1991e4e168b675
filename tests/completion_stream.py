"""A chat completion as a server streams it, with text, thinking, a call, usage and pings, and what comes of it."""

import json

from fake_upstream import delta, sse
from headrace.engine.port import Chunk, Finish, ModelRequest, ToolCallPart
from headrace.messages import Message
from headrace.testing.engine_contract import text_of

HELLO = ModelRequest(messages=(Message(role="user", content="Hello"),))
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":"帮"}'}}
STREAM = (
    b": ping\n\nretry: 3000\n\n"
    + sse(delta(role="assistant", content=""), delta(reasoning_content="hm… "), delta(content="café "))
    + b"data:"
    + json.dumps(delta(content="帮 😀"), ensure_ascii=False).encode()
    + b"\r\n\r\n"
    + sse(delta(tool_calls=[CALL]), delta("stop"), USAGE)
    + b"data:[DONE]\n\n"
)
EXPECTED = ("café 帮 😀", '{"a":"帮"}', "tool_calls", 6)


def summary(chunks: list[Chunk]) -> tuple[str, str, str, int]:
    finish = chunks[-1]
    assert isinstance(finish, Finish)
    arguments = "".join(chunk.arguments for chunk in chunks if isinstance(chunk, ToolCallPart))
    return text_of(chunks), arguments, finish.reason, finish.usage.output_tokens
