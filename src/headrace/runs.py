"""What a client may ask of runs: start, cancel, steer, answer, look at. Every protocol comes through here.

A client never talks to an agent: its wish is appended to the log, and whoever owns the run reads it there. So a
request works from any connection, and before the run has begun.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from headrace import events as e
from headrace.errors import (
    Draining,
    IdempotencyConflict,
    InputConflict,
    InvalidRequest,
    RunEnded,
    UnknownAgent,
    UnknownInput,
    UnknownRun,
    UnknownThread,
)
from headrace.log.ports import Claim, Log, NewRun, RunInfo
from headrace.messages import Message, ToolSpec
from headrace.state import RunState, conversation


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """A wish for a run, whichever protocol it came by. `agent` None means the default one."""

    input: tuple[Message, ...]
    agent: str | None = None
    thread_id: str | None = None
    model: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    client_tools: tuple[ToolSpec, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Launch(Protocol):
    """The supervisor's port: work on a run that was created and claimed in this process.

    `new_thread` says that no earlier run can be in its thread.
    """

    def __call__(self, claim: Claim, tenant: str, *, new_thread: bool) -> None: ...


class Runs:
    """The runs of all tenants. `agents` maps names to descriptions; the first one is the default. `early` are those
    that may begin to work before their run is durable, because they do nothing in the world before their first commit.
    """

    def __init__(
        self, *, log: Log, agents: Mapping[str, str], launch: Launch, early: Collection[str] = frozenset()
    ) -> None:
        self.log = log
        self.agents = agents
        self._early = early
        self.draining = False
        self._launch = launch

    async def start(self, wish: StartRun, *, tenant: str, key: str | None = None, fingerprint: str = "") -> str:
        """Begin a run and return its id; the id of the earlier one when `key` is known.

        Raises:
            UnknownAgent, InvalidRequest, IdempotencyConflict: nothing was started.
            Draining: this server is going away.
            LogUnavailable: it could not be stored.
        """
        agent = self._agent(wish.agent)
        if not wish.input:
            raise InvalidRequest("The input is empty.", hint='Send "input": "a question" or a list of messages.')
        if self.draining:
            raise Draining("This server is shutting down.", hint="Ask another instance, or again in a moment.")
        run_id = new_id()
        started = e.RunStarted(
            agent=agent,
            thread_id=wish.thread_id or new_id(),
            input=wish.input,
            model=wish.model,
            options=wish.options,
            client_tools=wish.client_tools,
            metadata=wish.metadata,
        )
        run = NewRun(run_id=run_id, tenant=tenant, key=key, fingerprint=fingerprint)
        launch = partial(self._launch, tenant=tenant, new_thread=wish.thread_id is None)
        early = agent in self._early
        created = await self.log.create(run, started, claim=True, begun=launch if early else None)
        if created.claim is not None and not early:
            launch(created.claim)
        return created.run_id

    async def check(self, run_id: str, tenant: str) -> None:
        """Raises UnknownRun for another tenant's run just as for none."""
        if await self.log.owner(run_id) != tenant:
            raise UnknownRun(
                f"There is no run {run_id[:64]!r}.", hint="Check the id; runs are forgotten after a while."
            )

    async def state(self, run_id: str, tenant: str) -> RunState:
        await self.check(run_id, tenant)
        return await self.log.state(run_id)

    async def cancel(self, run_id: str, tenant: str, *, by: str = "client", reason: str | None = None) -> RunState:
        """Ask the run to stop. Asking again, or after its end, changes nothing."""
        state = await self.state(run_id, tenant)
        if state.ended or state.cancel_requested:
            return state
        with contextlib.suppress(RunEnded):
            await self.log.append(run_id, [e.CancelRequested(by=by, reason=reason)])
        return await self.log.state(run_id)

    async def steer(
        self, run_id: str, tenant: str, text: str, mode: str = "next_turn", *, key: str | None = None
    ) -> str:
        """Give a run in flight another thought; the steer's id. Every accepted one ends applied or returned.

        With a `key` that this run knows, nothing is added and the id is the first one's, after the run's end too.

        Raises:
            RunEnded: too late.
            IdempotencyConflict: the key belongs to another steer.
        """
        if mode not in ("interrupt", "next_turn"):
            raise InvalidRequest(f"mode {mode!r} is unknown.", hint='Use "interrupt" or "next_turn".')
        if not text.strip():
            raise InvalidRequest("The steer has no text.", hint='Send "text": "…".')
        await self.check(run_id, tenant)
        # An id made of the key: the same steer asked for again is the same event, even once its record is forgotten.
        steer_id = new_id() if key is None else str(uuid.uuid5(uuid.NAMESPACE_URL, f"{run_id}/{key}"))
        steer = e.SteerReceived(steer_id=steer_id, text=text, mode="interrupt" if mode == "interrupt" else "next_turn")
        kept = await self.log.append(run_id, [steer], key=None if key is None else f"steer:{key}")
        if kept and kept[0].event != steer:
            raise IdempotencyConflict(
                "This idempotency key was used with another steer.", hint="Use a new key for a new steer."
            )
        return steer_id

    async def answer(self, run_id: str, tenant: str, input_id: str, value: Any) -> RunState:
        """Answer an `input.requested`. The first answer wins; the same one again is taken as such.

        Raises:
            UnknownInput: the run has not asked this.
            InputConflict: it has another answer already.
            RunEnded: too late.
        """
        state = await self.state(run_id, tenant)
        if not _has_asked(state, input_id):
            await self.log.catch_up(run_id)
            state = await self.log.state(run_id)
        if not _has_asked(state, input_id):
            raise UnknownInput(f"This run has not asked for {input_id[:64]!r}.", hint="See state.inputs.")
        # The log takes one append per key, so of answers that race exactly one is kept, and all learn which.
        received = e.InputReceived(input_id=input_id, value=value)
        kept = await self.log.append(run_id, [received], key=f"input:{input_id}")
        if kept and kept[0].event != received:
            raise InputConflict("This question has already been answered otherwise.", hint="See state.inputs.")
        return await self.log.state(run_id)

    async def thread(self, thread_id: str, tenant: str) -> tuple[list[RunInfo], list[Message]]:
        """The runs of a thread, oldest first, and the conversation they make.

        Raises:
            UnknownThread: the tenant has no run in it.
        """
        infos = list(reversed(await self.log.runs(tenant, thread_id=thread_id, limit=1000)))
        if not infos:
            raise UnknownThread(f"There is no thread {thread_id[:64]!r}.", hint="A thread begins with its first run.")
        states = [await self.log.state(info.run_id) for info in infos]
        return infos, [message for state in states for message in conversation(state)]

    def _agent(self, name: str | None) -> str:
        if name is None:
            return next(iter(self.agents))
        if name not in self.agents:
            known = ", ".join(self.agents)
            raise UnknownAgent(f"There is no agent {name[:64]!r}.", hint=f"This server has: {known}.")
        return name


def _has_asked(state: RunState, input_id: str) -> bool:
    return any(asked.input_id == input_id for asked in state.inputs)


def _uuid7() -> Callable[[], str]:
    """Ids that sort by time, also within a millisecond (RFC 9562, method 1: a 12 bit counter)."""
    lock = threading.Lock()
    last = 0

    def make() -> str:
        nonlocal last
        with lock:
            last = max(last + 1, (time.time_ns() // 1_000_000) << 12)
            stamp = last
        random = int.from_bytes(os.urandom(8)) & 0x3FFF_FFFF_FFFF_FFFF
        value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    return make


new_id = _uuid7()
"""A new UUIDv7, increasing within this process."""
