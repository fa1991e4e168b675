"""The tool calls of one run: recorded, started, settled.

`tool_call.ended` is durable before a tool starts. Each call gets exactly one `tool.result`: what it returned, or why
there is nothing. Calls of a turn run at the same time, except those that touch what an earlier one writes.
"""

import asyncio
import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.agent.port import RunContext
from headrace.agent.resume import may_have_begun
from headrace.errors import HeadraceError, ToolCancelled, ToolError, ToolFailed, TurnLimit, UnknownOutcome, UnknownTool
from headrace.events import (
    ArgsDelta,
    InputRequested,
    ToolCallEnded,
    ToolCallStarted,
    ToolFault,
    ToolProgress,
    ToolResult,
)
from headrace.messages import ToolSpec
from headrace.resilience.group import Group
from headrace.state import ToolCall
from headrace.tools.arguments import parse_arguments
from headrace.tools.assembly import CallWhole
from headrace.tools.execution import MAX_RESULT_BYTES, Outcome, execute, fault
from headrace.tools.port import Tool

Source = Literal["ran", "unknown_outcome"]

APPROVAL_SCHEMA: dict[str, Any] = {"type": "boolean", "description": "true to let the tool run, false to refuse it"}


class Calls:
    def __init__(
        self,
        context: RunContext,
        tools: Mapping[str, Tool],
        *,
        parallel: bool = True,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self.client_tools = frozenset(spec.name for spec in context.state.client_tools)
        self._context = context
        self._tools = tools
        self._parallel = parallel
        self._max_result_bytes = max_result_bytes
        self._calls = {call.call_id: call for call in context.state.tool_calls}
        self._done = {call_id: asyncio.Event() for call_id in self._calls}

    def of(self, turn: int) -> list[ToolCall]:
        """In call order."""
        return [call for call in self._calls.values() if call.turn == turn]

    def start(self, call_id: str, name: str, turn: int) -> None:
        self._calls[call_id] = ToolCall(call_id=call_id, name=name, turn=turn)
        self._done[call_id] = asyncio.Event()
        self._context.emit(ToolCallStarted(call_id=call_id, name=name, turn=turn))

    def fragment(self, call_id: str, text: str) -> None:
        self._context.emit(ArgsDelta(call_id=call_id, delta=text))

    def end(self, whole: CallWhole, turn: int, group: Group) -> None:
        """Record a call whose arguments are whole and start it, or refuse it."""
        if whole.call_id not in self._calls:
            self.start(whole.call_id, whole.name, turn)
        try:
            arguments = self._validate(whole)
        except ToolError as refusal:
            self._settle(whole.call_id, Outcome(error=fault(refusal)))
            return
        self._update(whole.call_id, arguments=arguments)
        self._context.emit(ToolCallEnded(call_id=whole.call_id, arguments=arguments))
        if whole.name not in self.client_tools:
            first = self._conflicting(self._calls[whole.call_id])
            group.create_task(self._run(whole.call_id, first), name=f"tool {whole.name} {whole.call_id}")

    def refuse(self, whole: CallWhole, turn: int) -> None:
        """For a call in an answer that was to hold none."""
        if whole.call_id not in self._calls:
            self.start(whole.call_id, whole.name, turn)
        self.close(whole.call_id, TurnLimit("The run has used up its turns: no tool is run any more."))

    def close(self, call_id: str, why: HeadraceError) -> None:
        """A call that will not run: it was cut, or the run ends. One that has its result keeps it."""
        self._settle(call_id, Outcome(error=ToolFault(code=why.code, message=why.message, hint=why.hint)))

    def close_all(self, why: HeadraceError) -> None:
        """The run ends: every call that still lacks a result gets one."""
        for call_id in self._calls:
            self.close(call_id, why)

    async def complete(self, turn: int) -> None:
        """After a restart: settle the calls of a turn that have no result."""
        async with Group() as group:
            for call in self.of(turn):
                if call.arguments is None:
                    self.close(call.call_id, ToolCancelled("The answer was cut before the arguments were whole."))
                elif not call.done and call.name not in self.client_tools:
                    self._complete(call, group)

    def _complete(self, call: ToolCall, group: Group) -> None:
        tool = self._tools.get(call.name)
        if tool is None:
            self.close(call.call_id, UnknownTool(f"There is no tool {call.name} any more."))
        elif tool.spec.effect == "once" and may_have_begun(call, tool.spec, self._context.state.inputs):
            lost = UnknownOutcome(
                f"The server stopped while {call.name} was running: whether it took effect is not known.",
                hint="It was not run again. Check before calling it again.",
            )
            self._settle(call.call_id, Outcome(error=fault(lost)), source="unknown_outcome")
        else:
            group.create_task(self._run(call.call_id, self._conflicting(call)), name=f"tool {call.name} again")

    def _validate(self, whole: CallWhole) -> dict[str, Any]:
        if whole.name in self.client_tools:
            return parse_arguments(whole.arguments)
        tool = self._tools.get(whole.name)
        if tool is None:
            known = ", ".join(sorted({*self._tools, *self.client_tools})) or "none"
            said = f"There is no tool {whole.name!r}." if whole.name else "The call names no tool."
            raise UnknownTool(said, hint=f"The tools are: {known}.")
        return tool.validate(whole.arguments)

    async def _run(self, call_id: str, first: list[asyncio.Event]) -> None:
        call = self._calls[call_id]
        tool = self._tools[call.name]
        arguments = call.arguments or {}
        await self._context.commit()  # nothing that a crash could forget may start
        for earlier in first:
            await earlier.wait()
        if self._context.stopped:
            return
        if tool.spec.approval and not await self._approved(call, arguments):
            self.close(call_id, ToolFailed(f"A person refused this call of {call.name}.", hint="Do not repeat it."))
            return
        await execute(
            tool,
            arguments,
            run_id=self._context.run_id,
            call_id=call_id,
            left=self._context.time_left(),
            show=lambda data: self._context.emit(ToolProgress(call_id=call_id, data=data)),
            settle=functools.partial(self._settle_unless_handed_over, call_id),
            stopping=lambda: self._context.stopped,
            max_result_bytes=self._max_result_bytes,
        )

    async def _approved(self, call: ToolCall, arguments: dict[str, Any]) -> bool:
        answer = await self._context.ask(
            InputRequested(
                input_id=f"approve-{call.call_id}",
                kind="approval",
                prompt=f"Run {call.name} with {msgspec.json.encode(arguments).decode()}?",
                schema=APPROVAL_SCHEMA,
                call_id=call.call_id,
                arguments_hash=arguments_hash(arguments),
            )
        )
        return answer is True or (isinstance(answer, dict) and answer.get("approved") is True)

    def _conflicting(self, call: ToolCall) -> list[asyncio.Event]:
        """What must be done before this call starts."""
        spec = self._tools[call.name].spec
        earlier = []
        for other in self.of(call.turn):
            if other.call_id == call.call_id:
                break
            tool = self._tools.get(other.name)
            running = tool is not None and other.arguments is not None and not other.done
            if tool is not None and running and not (self._parallel and independent(tool.spec, spec)):
                earlier.append(self._done[other.call_id])
        return earlier

    def _settle_unless_handed_over(self, call_id: str, outcome: Outcome) -> None:
        """Another worker will complete a call that was stopped because this one leaves."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not self._context.ending:
            return
        self._settle(call_id, outcome)

    def _settle(self, call_id: str, outcome: Outcome, source: Source = "ran") -> None:
        if self._calls[call_id].done:
            return
        self._update(call_id, done=True, result=outcome.result, error=outcome.error)
        self._done[call_id].set()
        self._context.emit(
            ToolResult(call_id=call_id, result=outcome.result, error=outcome.error, ms=outcome.ms, source=source)
        )

    def _update(self, call_id: str, **changes: Any) -> None:
        self._calls[call_id] = msgspec.structs.replace(self._calls[call_id], **changes)


def independent(one: ToolSpec, other: ToolSpec) -> bool:
    """Whether neither writes what the other reads or writes."""
    clash = {*one.writes} & {*other.reads, *other.writes} or {*other.writes} & {*one.reads}
    return not clash


def arguments_hash(arguments: Mapping[str, Any]) -> str:
    """The same for equal arguments, whatever the order of their fields."""
    canonical = msgspec.json.Encoder(order="sorted").encode(arguments)
    return hashlib.sha256(canonical).hexdigest()
