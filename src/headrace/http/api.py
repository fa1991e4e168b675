"""Headrace's own protocol over HTTP: runs, threads, agents (PROTOCOL.md)."""

import hashlib
import re
from typing import Any, Literal

import msgspec

from headrace.errors import InvalidRequest
from headrace.http.app import Route, Stream
from headrace.http.exchange import Exchange, Headers
from headrace.http.pulse import Pulse
from headrace.http.stream import known_head, open_stream, parse_cursor, parse_view
from headrace.http.waiting import ends_before_the_client
from headrace.log.ports import RunInfo
from headrace.messages import Message
from headrace.runs import Runs, StartRun
from headrace.state import ENDED, RunState

MAX_WAIT_S = 300
"""The longest `Prefer: wait`, in seconds."""


class InputMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/runs`. `input` is a question, `messages` a conversation; one of them."""

    input: str | list[InputMessage] | None = None
    messages: list[InputMessage] | None = None
    agent: str | None = None
    thread_id: str | None = None
    model: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: str | None = None


class SteerBody(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    mode: Literal["interrupt", "next_turn"] = "next_turn"


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True):
    value: Any


def wish(body: StartBody) -> StartRun:
    """The run that a body asks for. Raises InvalidRequest."""
    given = body.messages if body.messages is not None else body.input
    if given is None or (body.messages is not None and body.input is not None):
        raise InvalidRequest("Exactly one of input and messages is needed.", hint='Send {"input": "a question"}.')
    if isinstance(given, str):
        given = [InputMessage(role="user", content=given)]
    if not any(message.content.strip() for message in given if message.role == "user"):
        raise InvalidRequest("The input is empty.", hint='Send {"input": "a question"}.')
    if body.thread_id is not None and not re.fullmatch(r"[\w.:-]{1,128}", body.thread_id, re.ASCII):
        raise InvalidRequest("thread_id has other characters than letters, digits, . _ : - or over 128 of them.")
    return StartRun(
        input=tuple(Message(role=m.role, content=m.content) for m in given),
        agent=body.agent,
        thread_id=body.thread_id,
        model=body.model,
        options=body.options,
        metadata=body.metadata,
    )


class RunsApi:
    """The endpoints, over the runs of all tenants."""

    def __init__(self, runs: Runs, pulse: Pulse) -> None:
        self._runs = runs
        self._pulse = pulse

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/runs", self.start),
            Route("GET", "/v1/runs", self.list),
            Route("GET", "/v1/runs/{run_id}", self.state),
            Route("GET", "/v1/runs/{run_id}/events", self.events),
            Route("POST", "/v1/runs/{run_id}/cancel", self.cancel),
            Route("POST", "/v1/runs/{run_id}/steer", self.steer),
            Route("POST", "/v1/runs/{run_id}/inputs/{input_id}", self.answer),
            Route("GET", "/v1/threads", self.threads),
            Route("GET", "/v1/threads/{thread_id}", self.thread),
            Route("GET", "/v1/threads/{thread_id}/runs", self.thread_runs),
            Route("GET", "/v1/agents", self.agents),
        ]

    async def start(self, exchange: Exchange) -> Stream | None:
        view = parse_view(exchange.query)
        after = parse_cursor(exchange.header(b"last-event-id"))
        raw = await exchange.body()
        wanted = wish(exchange.decode(raw, StartBody))
        key = _idempotency_key(exchange)
        fingerprint = hashlib.sha256(raw).hexdigest() if key else ""
        run_id = await self._runs.start(wanted, tenant=exchange.tenant, key=key, fingerprint=fingerprint)
        headers = [(b"location", f"/v1/runs/{run_id}".encode()), (b"x-run-id", run_id.encode())]
        if "text/event-stream" in (exchange.header(b"accept") or ""):
            if after:
                await known_head(self._runs.log, run_id, after)
            return await open_stream(
                exchange, self._runs.log, self._pulse, run_id=run_id, after=after, view=view, headers=headers
            )
        await self._answer_started(exchange, run_id, headers)
        return None

    async def _answer_started(self, exchange: Exchange, run_id: str, headers: Headers) -> None:
        """202 with the run, or 200 with the finished one where the client preferred to wait for it."""
        wait = _preferred_wait(exchange.header(b"prefer"))
        if wait:
            await ends_before_the_client(exchange, self._runs.log, run_id, within=wait)
        state = await self._runs.log.state(run_id)
        await exchange.answer(_shown(state), status=200 if state.ended and wait else 202, headers=headers)

    async def events(self, exchange: Exchange) -> Stream | None:
        view = parse_view(exchange.query)
        last = exchange.header(b"last-event-id")
        after = parse_cursor(last if last is not None else exchange.query.get("after"))
        run_id = exchange.run_id
        await self._runs.check(run_id, exchange.tenant)
        head = await known_head(self._runs.log, run_id, after)
        if head.closed and after == head.seq:
            await exchange.respond_empty(204)
            return None
        return await open_stream(exchange, self._runs.log, self._pulse, run_id=run_id, after=after, view=view)

    async def state(self, exchange: Exchange) -> None:
        await exchange.answer(_shown(await self._runs.state(exchange.run_id, exchange.tenant)))

    async def cancel(self, exchange: Exchange) -> None:
        raw = await exchange.body()
        body = exchange.decode(raw, CancelBody) if raw.strip() else CancelBody()
        state = await self._runs.cancel(exchange.run_id, exchange.tenant, reason=body.reason)
        await exchange.answer(_shown(state), status=200 if state.ended else 202)

    async def steer(self, exchange: Exchange) -> None:
        body = exchange.decode(await exchange.body(), SteerBody)
        key = _idempotency_key(exchange)
        steer_id = await self._runs.steer(exchange.run_id, exchange.tenant, body.text, body.mode, key=key)
        await exchange.answer({"run_id": exchange.run_id, "steer_id": steer_id, "status": "received"}, status=202)

    async def answer(self, exchange: Exchange) -> None:
        body = exchange.decode(await exchange.body(), AnswerBody)
        input_id = exchange.path_values["input_id"]
        state = await self._runs.answer(exchange.run_id, exchange.tenant, input_id, body.value)
        await exchange.answer(_shown(state), status=202)

    async def list(self, exchange: Exchange) -> None:
        limit = exchange.query_int("limit", 50, low=1, high=1000)
        infos = await self._runs.log.runs(exchange.tenant, before=exchange.query.get("before"), limit=limit)
        await exchange.answer({"runs": [_row(info) for info in infos]})

    async def threads(self, exchange: Exchange) -> None:
        """The tenant's threads by their latest run, newest first, from the latest `limit` runs."""
        limit = exchange.query_int("limit", 200, low=1, high=1000)
        infos = await self._runs.log.runs(exchange.tenant, limit=limit)
        rows: dict[str, dict[str, Any]] = {}
        for info in infos:
            row = rows.setdefault(
                info.thread_id,
                {"thread_id": info.thread_id, "updated_ts": info.ended_ts or info.created_ts, "active_run": None},
            )
            row["title"] = info.title  # ends up the oldest run's: what the thread began with
            if info.status not in ENDED and row["active_run"] is None:
                row["active_run"] = info.run_id
        await exchange.answer({"threads": [*rows.values()]})

    async def thread(self, exchange: Exchange) -> None:
        thread_id = exchange.path_values["thread_id"]
        infos, messages = await self._runs.thread(thread_id, exchange.tenant)
        await exchange.answer({"thread_id": thread_id, "messages": messages, "runs": [_row(i) for i in infos]})

    async def thread_runs(self, exchange: Exchange) -> None:
        infos, _ = await self._runs.thread(exchange.path_values["thread_id"], exchange.tenant)
        await exchange.answer({"runs": [_row(info) for info in infos]})

    async def agents(self, exchange: Exchange) -> None:
        agents = [{"name": name, "description": text} for name, text in self._runs.agents.items()]
        await exchange.answer({"agents": agents})


def _shown(state: RunState) -> dict[str, Any]:
    return {"run_id": state.run_id, "thread_id": state.thread_id, "as_of_seq": state.seq, "state": state}


def _row(info: RunInfo) -> dict[str, Any]:
    row = msgspec.structs.asdict(info)
    del row["tenant"]
    return row


def _idempotency_key(exchange: Exchange) -> str | None:
    key = exchange.header(b"idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest("The Idempotency-Key is empty or over 255 characters.")
    return key


def _preferred_wait(prefer: str | None) -> float:
    """Seconds from `Prefer: wait=30`, 0 for none."""
    match = re.search(r"\bwait=(\d{1,6})\b", prefer or "")
    return float(min(int(match[1]), MAX_WAIT_S)) if match else 0.0
