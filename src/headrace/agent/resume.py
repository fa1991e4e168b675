"""Where a run stands: what a worker that starts, or starts again, has to do next. Pure.

A turn that was cut is asked again, for its rest or as a whole (`continuation.py`), unless it made a call: then its
calls are completed and it stands as it is.
A call with a result is never run again. One without is run again if that does no harm, or if it cannot have begun.
"""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from headrace.messages import Message, ToolSpec
from headrace.state import Input, RunState, ToolCall, Turn, conversation, was_asked


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is what the model had read when `last` began; `after` the steers applied since.

    `last` is the last turn that stands, `cut` when its end was never recorded; `again` a turn to be asked once more.
    """

    before: tuple[Message, ...]
    last: Turn | None = None
    cut: bool = False
    again: Turn | None = None
    after: tuple[Message, ...] = ()


def standing(state: RunState) -> Standing:
    if not state.turns:
        return Standing(before=(*conversation(state), *_steers(state, 1)))
    last = state.turns[-1]
    earlier = msgspec.structs.replace(state, turns=state.turns[:-1], output="")
    before = conversation(earlier)
    if last.finish_reason is None and not _binds(state, last):
        return Standing(before=(*before, *_steers(state, last.turn)), again=last)
    return Standing(
        before=(*before, *_steers(state, last.turn, last.turn)),
        last=last,
        cut=last.finish_reason is None,
        after=_steers(state, last.turn + 1),
    )


def may_have_begun(call: ToolCall, spec: ToolSpec, inputs: Iterable[Input]) -> bool:
    """Whether a call without a result may have taken effect. One that waits for approval has not."""
    if not spec.approval:
        return True
    return any(wanted.call_id == call.call_id and wanted.received for wanted in inputs)


def next_step(
    turn: Turn, calls: Iterable[ToolCall], *, client_tools: Collection[str], steered: bool
) -> Literal["ask", "client", "finish"]:
    """What follows a turn whose own calls are all answered."""
    asked = [call for call in calls if call.turn == turn.turn and was_asked(call)]
    if any(call.name in client_tools and not call.done for call in asked):
        return "client"
    if asked or steered or turn.finish_reason in ("interrupted", "error"):
        return "ask"
    return "finish"


def _binds(state: RunState, turn: Turn) -> bool:
    return any(call.turn == turn.turn and was_asked(call) for call in state.tool_calls)


def _steers(state: RunState, first: int, last: int | None = None) -> tuple[Message, ...]:
    """The steers whose first turn lies in a range, as the model reads them."""
    return tuple(
        Message(role="user", content=steer.text)
        for steer in state.steers
        if steer.turn is not None and first <= steer.turn and (last is None or steer.turn <= last)
    )
