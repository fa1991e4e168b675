"""The one reducer. Pure: it never looks at a clock, never fails on a record that the log accepted, and ignores a record
it has already seen (idempotent by seq). Snapshots, recovery, `GET /v1/runs/{id}` and clients all use it."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from headrace import events as e
from headrace.state.progress import crashes_after_text, crashes_so_far, gets_further
from headrace.state.values import Input, Item, Node, RunState, Steer, ToolCall, Turn


def apply(state: RunState, record: e.Record) -> RunState:
    """The state after `record`. A record at or before `state.seq` changes nothing."""
    if record.seq <= state.seq:
        return state
    changes = _CHANGES[type(record.event)](state, record.event, record.ts)
    if state.crashes and gets_further(record.event):
        changes["crashes"] = 0
    return msgspec.structs.replace(state, seq=record.seq, **changes)


def fold(records: Iterable[e.Record], state: RunState) -> RunState:
    """Apply every record in order. Adjacent text deltas are joined first, so that long answers stay linear."""
    pieces: list[str] = []
    last: e.Record | None = None
    for record in records:
        if record.seq <= state.seq:
            continue
        if type(record.event) is e.TextDelta:
            pieces.append(record.event.text)
            last = record
            continue
        if last is not None:
            state = apply_deltas(state, "text", pieces, last.seq)
            pieces, last = [], None
        state = apply(state, record)
    return state if last is None else apply_deltas(state, "text", pieces, last.seq)


# One function per event: (state, event, ts) -> the fields that change.

_Changes = dict[str, Any]


def apply_deltas(state: RunState, kind: Literal["text", "thinking"], pieces: list[str], seq: int) -> RunState:
    """The state after adjacent deltas of one kind, the last of them record `seq`: `apply` for each, but linear."""
    turns = _last_turn(state)
    turn = turns[-1]
    said, whole = turn.text if kind == "text" else turn.thinking, "".join(pieces)
    if kind == "text":
        grown = msgspec.structs.replace(turn, text=said + whole, text_deltas=turn.text_deltas + len(pieces))
    else:
        grown = msgspec.structs.replace(turn, thinking=said + whole, thinking_deltas=turn.thinking_deltas + len(pieces))
    return msgspec.structs.replace(
        state,
        seq=seq,
        turns=(*turns[:-1], grown),
        crashes=crashes_after_text(state, turn) if kind == "text" else state.crashes,
        items=_continue_item(state, kind, turn.turn, len(said)),
        deltas=state.deltas + len(pieces),
    )


def _last_turn(state: RunState) -> tuple[Turn, ...]:
    """The turns, with an implicit one (0) for agents of one's own that speak without asking an engine."""
    return state.turns or (Turn(turn=0, model="", engine="", started_seq=state.seq + 1),)


def _change_turn(state: RunState, number: int, **changes: Any) -> tuple[Turn, ...]:
    return tuple(
        msgspec.structs.replace(turn, **changes) if turn.turn == number else turn for turn in _last_turn(state)
    )


def _change_call(state: RunState, call_id: str, **changes: Any) -> _Changes:
    return {
        "tool_calls": tuple(
            msgspec.structs.replace(call, **changes) if call.call_id == call_id else call for call in state.tool_calls
        )
    }


def _continue_item(state: RunState, kind: Literal["text", "thinking"], turn: int, start: int) -> tuple[Item, ...]:
    """The items, with one of this kind and turn last: the one that is open, or a new one."""
    if state.items:
        last = state.items[-1]
        if last.kind == kind and last.turn == turn and not last.void:
            return state.items
    return _begin_item(state, Item(kind=kind, turn=turn, start=start, sources=len(state.sources)))


def _begin_item(state: RunState, item: Item) -> tuple[Item, ...]:
    """The items and a new one, which closes the one before it."""
    if not state.items:
        return (item,)
    last = state.items[-1]
    return (*state.items[:-1], last if last.void else msgspec.structs.replace(last, closed=True), item)


def _void_items(state: RunState, turn: int) -> tuple[Item, ...]:
    """The items once what `turn` has said is taken back. A call that was shown stays."""
    return tuple(
        msgspec.structs.replace(item, void=True) if item.turn == turn and item.kind != "call" else item
        for item in state.items
    )


def _run_started(state: RunState, event: e.RunStarted, ts: int) -> _Changes:
    return {
        "agent": event.agent,
        "thread_id": event.thread_id,
        "input": event.input,
        "model": event.model,
        "options": event.options,
        "client_tools": event.client_tools,
        "metadata": event.metadata,
        "created_ts": ts,
        "status": "running",
    }


def _run_queued(state: RunState, event: e.RunQueued, ts: int) -> _Changes:
    if event.position == 0:
        return {"status": "running", "queue_position": None}
    return {"status": "queued", "queue_position": event.position}


def _run_recovered(state: RunState, event: e.RunRecovered, ts: int) -> _Changes:
    return {"recoveries": state.recoveries + 1, "crashes": crashes_so_far(state), "released": False}


def _run_released(state: RunState, event: e.RunReleased, ts: int) -> _Changes:
    return {"released": True}


def _turn_started(state: RunState, event: e.TurnStarted, ts: int) -> _Changes:
    turn = Turn(turn=event.turn, model=event.model, engine=event.engine, started_seq=state.seq + 1)
    kept = tuple(t for t in state.turns if t.turn != event.turn)
    return {
        "turns": (*kept, turn),
        "items": _void_items(state, event.turn),
        "status": "running",
        "queue_position": None,
    }


def _turn_finished(state: RunState, event: e.TurnFinished, ts: int) -> _Changes:
    turns = _change_turn(state, event.turn, finish_reason=event.finish_reason, usage=event.usage, timing=event.timing)
    return {"turns": turns, "usage": state.usage + event.usage}


def _thinking_delta(state: RunState, event: e.ThinkingDelta, ts: int) -> _Changes:
    turns = _last_turn(state)
    turn = turns[-1]
    grown = msgspec.structs.replace(turn, thinking=turn.thinking + event.text, thinking_deltas=turn.thinking_deltas + 1)
    return {
        "turns": (*turns[:-1], grown),
        "items": _continue_item(state, "thinking", turn.turn, len(turn.thinking)),
        "deltas": state.deltas + 1,
    }


def _text_delta(state: RunState, event: e.TextDelta, ts: int) -> _Changes:
    turns = _last_turn(state)
    turn = turns[-1]
    grown = msgspec.structs.replace(turn, text=turn.text + event.text, text_deltas=turn.text_deltas + 1)
    return {
        "turns": (*turns[:-1], grown),
        "crashes": crashes_after_text(state, turn),
        "items": _continue_item(state, "text", turn.turn, len(turn.text)),
        "deltas": state.deltas + 1,
    }


def _text_retracted(state: RunState, event: e.TextRetracted, ts: int) -> _Changes:
    turns = tuple(
        msgspec.structs.replace(turn, text="", thinking="", retracted=turn.retracted + 1, continued=0)
        if turn.turn == event.turn
        else turn
        for turn in _last_turn(state)
    )
    return {"turns": turns, "items": _void_items(state, event.turn)}


def _turn_continued(state: RunState, event: e.TurnContinued, ts: int) -> _Changes:
    turns = tuple(
        msgspec.structs.replace(turn, continued=turn.continued + 1) if turn.turn == event.turn else turn
        for turn in _last_turn(state)
    )
    return {"turns": turns}


def _tool_call_started(state: RunState, event: e.ToolCallStarted, ts: int) -> _Changes:
    call = ToolCall(call_id=event.call_id, name=event.name, turn=event.turn, started_ts=ts)
    kept = tuple(c for c in state.tool_calls if c.call_id != event.call_id)
    return {"tool_calls": (*kept, call)}


def _args_delta(state: RunState, event: e.ArgsDelta, ts: int) -> _Changes:
    return {}


def _tool_call_ended(state: RunState, event: e.ToolCallEnded, ts: int) -> _Changes:
    changes = _change_call(state, event.call_id, arguments=event.arguments)
    call = next((call for call in state.tool_calls if call.call_id == event.call_id), None)
    if call is not None and call.arguments is None and any(tool.name == call.name for tool in state.client_tools):
        item = Item(kind="call", turn=call.turn, call_id=call.call_id, sources=len(state.sources))
        changes["items"] = _begin_item(state, item)
    return changes


def _tool_progress(state: RunState, event: e.ToolProgress, ts: int) -> _Changes:
    return _change_call(state, event.call_id, progress=event.data)


def _tool_result(state: RunState, event: e.ToolResult, ts: int) -> _Changes:
    return _change_call(
        state,
        event.call_id,
        done=True,
        result=event.result,
        error=event.error,
        ms=event.ms,
        source=event.source,
        progress=None,
    )


def _node_started(state: RunState, event: e.NodeStarted, ts: int) -> _Changes:
    kept = tuple(n for n in state.nodes if n.node != event.node)
    return {"nodes": (*kept, Node(node=event.node, needs=event.needs, started_ts=ts))}


def _node_finished(state: RunState, event: e.NodeFinished, ts: int) -> _Changes:
    return {
        "nodes": tuple(
            msgspec.structs.replace(n, status=event.status, ms=event.ms, result=event.result, error=event.error)
            if n.node == event.node
            else n
            for n in state.nodes
        )
    }


def _source_cited(state: RunState, event: e.SourceCited, ts: int) -> _Changes:
    return {"sources": (*state.sources, event)}


def _route_chosen(state: RunState, event: e.RouteChosen, ts: int) -> _Changes:
    return {"routes": (*state.routes, event)}


def _cache_hit(state: RunState, event: e.CacheHit, ts: int) -> _Changes:
    return {"cache_hits": (*state.cache_hits, event)}


def _input_requested(state: RunState, event: e.InputRequested, ts: int) -> _Changes:
    wanted = Input(
        input_id=event.input_id,
        kind=event.kind,
        prompt=event.prompt,
        schema=event.schema,
        call_id=event.call_id,
        arguments_hash=event.arguments_hash,
    )
    return {"inputs": (*state.inputs, wanted), "status": "waiting"}


def _input_received(state: RunState, event: e.InputReceived, ts: int) -> _Changes:
    inputs = tuple(
        msgspec.structs.replace(wanted, received=True, value=event.value)
        if wanted.input_id == event.input_id
        else wanted
        for wanted in state.inputs
    )
    waiting = any(not wanted.received for wanted in inputs)
    return {"inputs": inputs, "status": "waiting" if waiting else "running"}


def _cancel_requested(state: RunState, event: e.CancelRequested, ts: int) -> _Changes:
    return {"cancel_requested": True}


def _steer_received(state: RunState, event: e.SteerReceived, ts: int) -> _Changes:
    return {"steers": (*state.steers, Steer(steer_id=event.steer_id, text=event.text, mode=event.mode))}


def _change_steer(state: RunState, steer_id: str, **changes: Any) -> _Changes:
    return {
        "steers": tuple(msgspec.structs.replace(s, **changes) if s.steer_id == steer_id else s for s in state.steers)
    }


def _steer_applied(state: RunState, event: e.SteerApplied, ts: int) -> _Changes:
    next_turn = state.turns[-1].turn + 1 if state.turns else 1
    return _change_steer(state, event.steer_id, status="applied", turn=next_turn)


def _steer_returned(state: RunState, event: e.SteerReturned, ts: int) -> _Changes:
    return _change_steer(state, event.steer_id, status="returned", reason=event.reason)


def _run_finished(state: RunState, event: e.RunFinished, ts: int) -> _Changes:
    return {
        "status": event.status,
        "output": event.output,
        "finish_reason": event.finish_reason,
        "usage": event.usage,
        "timing": event.timing,
        "ended_ts": ts,
        "queue_position": None,
    }


def _run_error(state: RunState, event: e.RunErrored, ts: int) -> _Changes:
    return {"status": "failed", "error": event, "ended_ts": ts, "queue_position": None}


_CHANGES: dict[type[e.Event], Any] = {
    e.RunStarted: _run_started,
    e.RunQueued: _run_queued,
    e.RunRecovered: _run_recovered,
    e.RunReleased: _run_released,
    e.TurnStarted: _turn_started,
    e.TurnFinished: _turn_finished,
    e.ThinkingDelta: _thinking_delta,
    e.TextDelta: _text_delta,
    e.TextRetracted: _text_retracted,
    e.TurnContinued: _turn_continued,
    e.ToolCallStarted: _tool_call_started,
    e.ArgsDelta: _args_delta,
    e.ToolCallEnded: _tool_call_ended,
    e.ToolProgress: _tool_progress,
    e.ToolResult: _tool_result,
    e.NodeStarted: _node_started,
    e.NodeFinished: _node_finished,
    e.SourceCited: _source_cited,
    e.RouteChosen: _route_chosen,
    e.CacheHit: _cache_hit,
    e.InputRequested: _input_requested,
    e.InputReceived: _input_received,
    e.CancelRequested: _cancel_requested,
    e.SteerReceived: _steer_received,
    e.SteerApplied: _steer_applied,
    e.SteerReturned: _steer_returned,
    e.RunFinished: _run_finished,
    e.RunErrored: _run_error,
}
