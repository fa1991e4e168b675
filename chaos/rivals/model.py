"""The scripted model as an OpenAI-compatible server: a rival's agent is told what `chaos.app` has ours say.

A call's id is its label, so that a call that is asked for again after a crash keeps its name.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.rivals import ROOT
from chaos.plan import PlannedTurn, RunPlan, labels, next_turn, read_question
from chaos.process import Process, environment, free_port

Message = Mapping[str, Any]


def model(folder: Path) -> Process:
    """The server; nothing is done to it."""
    port = free_port()
    command = [sys.executable, "-m", "chaos.rivals.model", "--port", str(port)]
    return Process("model", "store", command, port=port, folder=folder, env=environment() | {"PYTHONPATH": str(ROOT)})


def answer_to(messages: Sequence[Message]) -> tuple[RunPlan, PlannedTurn]:
    """What comes next in a conversation. Raises ValueError if its question names no plan."""
    question = next(text_of(message) for message in messages if message["role"] == "user")
    asked = labels(call["function"]["arguments"] for message in messages for call in message.get("tool_calls") or ())
    plan = read_question(question)
    return plan, next_turn(plan, asked)


def text_of(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def deltas(turn: PlannedTurn) -> Iterator[dict[str, Any]]:
    """The answer as the deltas of a streamed chat completion."""
    yield {"role": "assistant", "content": ""}
    for piece in turn.pieces:
        yield {"content": piece}
    for index, call in enumerate(turn.calls):
        function = {"name": call.tool, "arguments": call.arguments}
        yield {"tool_calls": [{"index": index, "id": call.label, "type": "function", "function": function}]}


def frame(model: str, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    plan, turn = answer_to(body["messages"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with contextlib.suppress(ConnectionResetError):  # the server that asked was killed
        await response.prepare(request)
        for delta in deltas(turn):
            if delta.get("content"):
                await asyncio.sleep(1 / plan.rate)
            await response.write(frame(body["model"], delta))
        await response.write(frame(body["model"], {}, "tool_calls" if turn.calls else "stop"))
        await response.write(b"data: [DONE]\n\n")
    return response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port, print=None, access_log=None)


if __name__ == "__main__":
    main()
