"""LangGraph's own Python client in a process of its own, because it lives in another environment than the harness.

An order is a line on stdin, `{"id": 1, "do": "follow", …}`; what comes of it are lines on stdout with the same id: any
number of `part`s, then `result` or `error`. `{"id": 1, "do": "leave"}` ends an order early. Standard library and
LangGraph's client only.
"""

import asyncio
import json
import sys
import time
from typing import Any

import httpx
from langgraph_sdk import get_client  # type: ignore[import-not-found]
from langgraph_sdk.client import LangGraphClient  # type: ignore[import-not-found]
from langgraph_sdk.errors import APIStatusError, ConflictError  # type: ignore[import-not-found]

_PATIENCE_S = 60.0
_RETRY_S = 1.0
_MODES = ["messages-tuple", "values"]
"""What LangGraph's own user interfaces ask for: tokens, and the whole state after every step."""

Order = dict[str, Any]


class Client:
    def __init__(self) -> None:
        self._clients: dict[str, LangGraphClient] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until stdin ends."""
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            order = json.loads(line)
            if order["do"] == "leave":
                if task := self._under_way.get(order["id"]):
                    task.cancel()
                continue
            self._under_way[order["id"]] = asyncio.create_task(self._obey(order))

    async def _obey(self, order: Order) -> None:
        todo = {"begin": self._begin, "follow": self._follow, "read": self._read, "final": self._final}[order["do"]]
        try:
            say(id=order["id"], result=await todo(order))
        except Exception as error:
            say(id=order["id"], error=repr(error)[:300])
        finally:
            del self._under_way[order["id"]]

    async def _begin(self, order: Order) -> str:
        """The client has no idempotency keys. A thread for this run alone, which takes one at a time, does instead."""
        client, thread = self._at(order["url"]), order["thread"]
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await client.threads.create(thread_id=thread, if_exists="do_nothing")
                if runs := await client.runs.list(thread):
                    return str(runs[0]["run_id"])
                run = await client.runs.create(
                    thread,
                    "chaos",
                    input={"messages": [{"role": "user", "content": order["question"]}]},
                    stream_mode=_MODES,
                    stream_resumable=True,
                    multitask_strategy="reject",
                    durability="sync",
                )
                return str(run["run_id"])
            except (httpx.HTTPError, ConflictError):  # whether it began is not known: look
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _follow(self, order: Order) -> None:
        """The client comes back five times by itself; then, and where it does not, so does whoever uses it."""
        last, heard = "0", time.monotonic()
        while True:
            try:
                async for part in self._join(order, last):
                    last, heard = part.id or last, time.monotonic()
                return
            except APIStatusError:
                raise
            except httpx.HTTPError:
                if time.monotonic() - heard > _PATIENCE_S:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _read(self, order: Order) -> None:
        async for _ in self._join(order, "0"):
            pass

    async def _join(self, order: Order, after: str) -> Any:
        """Every part that carries an id is one of the run's records. Raises RuntimeError if the server knows no run."""
        runs = self._at(order["url"]).runs
        async for part in runs.join_stream(order["thread"], order["run"], last_event_id=after):
            if part.event == "error" and part.data.get("error") == "HTTPException":
                raise RuntimeError(part.data["message"])
            if part.id:
                say(id=order["id"], part={"event": part.event, "id": part.id, "data": part.data})
            yield part

    async def _final(self, order: Order) -> dict[str, Any]:
        client = self._at(order["url"])
        run = await client.runs.get(order["thread"], order["run"])
        state = await client.threads.get_state(order["thread"])
        return {"status": run["status"], "messages": state["values"].get("messages", [])}

    def _at(self, url: str) -> LangGraphClient:
        return self._clients.setdefault(url, get_client(url=url))


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Client().serve())
