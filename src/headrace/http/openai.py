"""OpenAI's Chat Completions and Responses over HTTP, for clients that were written for them.

A foreground request stops with its connection (foreground.py). A background response lives on, and
`GET /v1/responses/{id}?stream=true&starting_after=N` picks it up.
"""

import hashlib

from headrace.clock import wall_ms
from headrace.dialects.openai_chat import chat_start, decode_chat
from headrace.dialects.openai_chat_answer import ChatStream, chat_completion
from headrace.dialects.openai_errors import Failure, failure, run_failure
from headrace.dialects.openai_input import Start
from headrace.dialects.openai_response import response_object
from headrace.dialects.openai_response_stream import ResponseStream, next_number
from headrace.dialects.openai_responses import decode_response, response_start
from headrace.dialects.openai_shared import run_id_of
from headrace.errors import HeadraceError, InvalidCursor, InvalidRequest, UnknownAgent, UnknownRun
from headrace.http.app import Route, Stream
from headrace.http.dialect_stream import Fold, open_dialect_stream
from headrace.http.exchange import Exchange, Headers
from headrace.http.foreground import Foreground, idempotency_key, run_headers
from headrace.http.problem import RETRY_AFTER_S
from headrace.http.pulse import Pulse
from headrace.http.waiting import ends_before_the_client
from headrace.messages import Message
from headrace.runs import Runs, StartRun, new_id
from headrace.state import conversation, initial, without_stand_ins

CANCEL_WAIT_S = 2.0
"""How long a cancel waits for the run's end, so that its answer can say `cancelled`."""


class OpenAIApi:
    """The endpoints, over the runs of all tenants. An agent is what these clients call a model."""

    def __init__(self, runs: Runs, pulse: Pulse) -> None:
        self._runs = runs
        self._pulse = pulse
        self._foreground = Foreground(runs, pulse)
        self._since = wall_ms() // 1000

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/chat/completions", self.chat, errors=answer_failure),
            Route("GET", "/v1/models", self.models, errors=answer_failure),
            Route("GET", "/v1/models/{model}", self.model, errors=answer_failure),
            Route("POST", "/v1/responses", self.respond, errors=answer_failure),
            Route("GET", "/v1/responses/{response_id}", self.response, errors=answer_failure),
            Route("POST", "/v1/responses/{response_id}/cancel", self.cancel, errors=answer_failure),
        ]

    async def chat(self, exchange: Exchange) -> None:
        raw = await exchange.body()
        request = decode_chat(raw)
        run_id = await self._start(exchange, raw, chat_start(request), thread_id=None)
        if request.stream:
            fold = ChatStream(initial(run_id), include_usage=request.include_usage)
            await self._foreground.stream(exchange, run_id, fold)
        elif await self._foreground.ends_first(exchange, run_id):
            state = await self._runs.log.state(run_id)
            if state.error is not None:
                await _answer(exchange, run_failure(state.error), headers=run_headers(run_id))
            else:
                await exchange.answer(chat_completion(state), headers=run_headers(run_id))

    async def models(self, exchange: Exchange) -> None:
        await exchange.answer({"object": "list", "data": [self._shown_model(name) for name in self._runs.agents]})

    async def model(self, exchange: Exchange) -> None:
        name = exchange.path_values["model"]
        if name not in self._runs.agents:
            raise UnknownAgent(f"There is no model {name[:64]!r}.", hint="GET /v1/models lists them.")
        await exchange.answer(self._shown_model(name))

    async def respond(self, exchange: Exchange) -> Stream | None:
        raw = await exchange.body()
        request = decode_response(raw)
        start = response_start(request)
        thread_id, before = await self._conversation(request.previous_response_id, exchange.tenant)
        before = without_stand_ins(before, start.input)
        run_id = await self._start(exchange, raw, start, thread_id=thread_id, before=before)
        if request.background:
            if request.stream:
                return await self._open(exchange, run_id, ResponseStream(initial(run_id)))
            await self._answer_response(exchange, run_id)
        elif request.stream:
            await self._foreground.stream(exchange, run_id, ResponseStream(initial(run_id)))
        elif await self._foreground.ends_first(exchange, run_id):
            state = await self._runs.log.state(run_id)
            if state.error is not None:
                await _answer(exchange, run_failure(state.error), headers=run_headers(run_id))
            else:
                await self._answer_response(exchange, run_id)
        return None

    async def response(self, exchange: Exchange) -> Stream | None:
        run_id = await self._find(exchange.path_values["response_id"], exchange.tenant)
        if exchange.query.get("stream", "").lower() not in ("true", "1"):
            await self._answer_response(exchange, run_id)
            return None
        after = _starting_after(exchange.query.get("starting_after"))
        if after >= 0:
            await self._check_starting_after(after, run_id)
        return await self._open(exchange, run_id, ResponseStream(initial(run_id), after=after))

    async def _check_starting_after(self, after: int, run_id: str) -> None:
        """Raises InvalidCursor for one that is ahead of the response, wherever one asks."""
        log = self._runs.log
        if after >= next_number(await log.state(run_id)):
            await log.catch_up(run_id)
        known = next_number(await log.state(run_id))
        if after >= known:
            raise InvalidCursor(
                f"starting_after={after} is ahead of this response, whose last event is {known - 1}.",
                hint="It may be another response's. Start again without it.",
            )

    async def cancel(self, exchange: Exchange) -> None:
        run_id = await self._find(exchange.path_values["response_id"], exchange.tenant)
        await exchange.body()
        state = await self._runs.cancel(run_id, exchange.tenant)
        if not state.ended:
            await ends_before_the_client(exchange, self._runs.log, run_id, within=CANCEL_WAIT_S)
        await self._answer_response(exchange, run_id)

    async def _start(
        self, exchange: Exchange, raw: bytes, start: Start, *, thread_id: str | None, before: tuple[Message, ...] = ()
    ) -> str:
        wish = StartRun(
            input=(*before, *start.input),
            agent=start.agent,
            thread_id=thread_id,
            options=start.options,
            client_tools=start.client_tools,
            metadata=start.metadata,
        )
        key = idempotency_key(exchange)
        fingerprint = hashlib.sha256(raw).hexdigest() if key else ""
        return await self._runs.start(wish, tenant=exchange.tenant, key=key, fingerprint=fingerprint)

    async def _conversation(self, previous: str | None, tenant: str) -> tuple[str | None, tuple[Message, ...]]:
        """The thread to go on in. After an older response a new one branches off, with what was said until then."""
        if previous is None:
            return None, ()
        field = "previous_response_id"
        run_id = run_id_of(previous, "resp_")
        info = await self._runs.log.find(run_id) if run_id else None
        if run_id is None or info is None or info.tenant != tenant:
            raise InvalidRequest(f"There is no response {previous[:64]!r}.", field=field)
        if info.ended_ts is None:
            raise InvalidRequest(f"{previous} has not ended yet.", hint="Wait for it or cancel it.", field=field)
        infos = await self._runs.log.runs(tenant, thread_id=info.thread_id, limit=1000)
        if infos[0].run_id == run_id:
            return info.thread_id, ()
        until = [i.run_id for i in reversed(infos) if i.run_id <= run_id and i.ended_ts is not None]
        states = [await self._runs.log.state(earlier) for earlier in until]
        return new_id(), tuple(message for state in states for message in conversation(state))

    async def _find(self, response_id: str, tenant: str) -> str:
        """The run behind a response. Raises UnknownRun, for another tenant's too."""
        run_id = run_id_of(response_id, "resp_")
        info = await self._runs.log.find(run_id) if run_id else None
        if run_id is None or info is None or info.tenant != tenant:
            raise UnknownRun(f"There is no response {response_id[:64]!r}.", hint="They are forgotten after a while.")
        return run_id

    async def _open(self, exchange: Exchange, run_id: str, fold: Fold) -> Stream:
        return await open_dialect_stream(
            exchange, self._runs.log, self._pulse, fold, run_id=run_id, headers=run_headers(run_id)
        )

    async def _answer_response(self, exchange: Exchange, run_id: str) -> None:
        state = await self._runs.log.state(run_id)
        await exchange.answer(response_object(state), headers=run_headers(run_id))

    def _shown_model(self, name: str) -> dict[str, str | int]:
        return {"id": name, "object": "model", "created": self._since, "owned_by": "headrace"}


async def answer_failure(exchange: Exchange, error: HeadraceError) -> None:
    await _answer(exchange, failure(error))


async def _answer(exchange: Exchange, refused: Failure, headers: Headers = ()) -> None:
    """`x-should-retry`, because these clients would else repeat every 5xx, and with it a run that cannot succeed."""
    shown = [(b"x-should-retry", b"true" if refused.retryable else b"false"), *headers]
    if refused.retryable:
        shown.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    if refused.status == 401:
        shown.append((b"www-authenticate", b"Bearer"))
    await exchange.answer(refused.body, status=refused.status, headers=shown)


def _starting_after(text: str | None) -> int:
    """The last number the client has, -1 for none. Raises InvalidCursor."""
    if text is None or text.strip() in ("", "-1"):
        return -1
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidCursor(
            f"starting_after={text[:40]!r} is no sequence_number.", hint="Send the last one you received."
        )
    return int(text)
