"""A run as the events of a Response. Each carries a `sequence_number`: 0, 1, 2 … without gaps.

The numbers are the dialect's own and are never stored: how many events a run has given so far is a function of its
`RunState` (`next_number`). So any server can go on anywhere, `starting_after=N` works on a log whose beginning is
gone, and two clients of a run see the same bytes.

    run.started              response.created, response.in_progress
    the first delta          output_item.added, content_part.added, then the delta
    another item, the end    annotation.added …, output_text.done, content_part.done, output_item.done
    a client tool's call     output_item.added, function_call_arguments.delta and .done, output_item.done
    a retraction             the open item ends `incomplete`
    the terminal record      response.completed, .incomplete (also when cancelled) or .failed

A call is shown when its arguments are whole and valid; fragments of what may yet be refused are not.
"""

from typing import Any

from headrace import events as e
from headrace.dialects.openai_response import (
    annotations,
    function_call,
    has_late_message,
    item_id,
    item_kind,
    item_shell,
    item_status,
    item_text,
    late_message,
    part,
    response_object,
    response_status,
)
from headrace.dialects.openai_shared import DeltaFrame, Kind, RecordFold, json
from headrace.state import RunState

_ENDS = {"completed": "response.completed", "failed": "response.failed"}
_STREAMED = {"text": "output_text", "thinking": "reasoning_text"}


class ResponseStream(RecordFold):
    """The events of one run with numbers above `after`, the last one that the client has (-1: none)."""

    def __init__(self, state: RunState, *, after: int = -1) -> None:
        self._after = after
        super().__init__(state)

    def snapshot(self, state: RunState) -> bytes:
        """Instead of events that are gone: the response as it stands, in an event that takes the place of the last.

        A client without a prefix gets it as `response.created`, which its accumulator starts from.
        """
        numbers = _Numbers(next_number(state) - (2 if state.ended else 1), self._after)
        name = "response.created" if self._after < 0 and not self._state.seq else "response.in_progress"
        shown = numbers.event(name, response=response_object(state))
        self.restart(state)
        return shown + _terminal(state, numbers) if state.ended else shown

    def step(self, before: RunState, record: e.Record, after: RunState) -> bytes:
        numbers = _Numbers(next_number(before), self._after)
        frames = [_begin(after, numbers)] if not before.seq else []
        last = len(before.items) - 1
        if last >= 0 and _is_open(before, last) and not _is_open(after, last):
            frames.append(_close(before, after, last, numbers))
        frames += [_show(after, index, numbers) for index in range(len(before.items), len(after.items))]
        if isinstance(record.event, e.TextDelta | e.ThinkingDelta):
            frames.append(_delta(after, len(after.items) - 1, record.event.text, numbers))
        if after.ended:
            frames.append(_late(after, numbers) + _terminal(after, numbers))
        return b"".join(frames)

    def patterns(self, state: RunState) -> dict[Kind, DeltaFrame]:
        last = len(state.items) - 1
        if last < 0 or not _is_open(state, last) or state.items[last].turn != state.turns[-1].turn:
            return {}
        before, behind = _delta_frame(state, last).split(b'""')
        middle, suffix = behind.split(b'"sequence_number":0')
        middle += b'"sequence_number":'
        pattern = DeltaFrame(before, middle, number=next_number(state), suffix=suffix, after=self._after)
        return {"text" if state.items[last].kind == "text" else "thinking": pattern}


def next_number(state: RunState) -> int:
    """How many events the run has given: the number of the next one."""
    if not state.seq:
        return 0
    late = 6 + len(late_message(state)["content"][0]["annotations"]) if has_late_message(state) else 0
    return 2 + state.deltas + sum(_item_events(state, i) for i in range(len(state.items))) + late + state.ended


def _item_events(state: RunState, index: int) -> int:
    """How many events an item has given besides its deltas."""
    if _is_call(state, index):
        return 4
    return 2 if _is_open(state, index) else 5 + len(annotations(state, index))


class _Numbers:
    """Hands out sequence numbers; an event the client has seen is counted and not written."""

    def __init__(self, first: int, after: int) -> None:
        self.next = first
        self._after = after

    def event(self, name: str, /, **fields: Any) -> bytes:
        number = self.next
        self.next += 1
        return b"" if number <= self._after else _event(name, number, fields)


def _event(name: str, number: int, fields: dict[str, Any]) -> bytes:
    data = json.encode({"type": name, **fields, "sequence_number": number})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _is_call(state: RunState, index: int) -> bool:
    return state.items[index].kind == "call"


def _is_open(state: RunState, index: int) -> bool:
    item = state.items[index]
    return item.kind != "call" and not (item.closed or item.void or state.ended)


def _begin(state: RunState, numbers: _Numbers) -> bytes:
    response = response_object(state)
    return numbers.event("response.created", response=response) + numbers.event(
        "response.in_progress", response=response
    )


def _show(state: RunState, index: int, numbers: _Numbers) -> bytes:
    """A new item: a call is complete at once."""
    return _call(state, index, numbers) if _is_call(state, index) else _open(state, index, numbers)


def _place(state: RunState, index: int) -> dict[str, Any]:
    return {"item_id": item_id(state, index), "output_index": index, "content_index": 0}


def _open(state: RunState, index: int, numbers: _Numbers) -> bytes:
    kind = item_kind(state, index)
    item = item_shell(state, index, [], "in_progress")
    return numbers.event("response.output_item.added", output_index=index, item=item) + numbers.event(
        "response.content_part.added", **_place(state, index), part=part(kind, "", [])
    )


def _delta_fields(state: RunState, index: int, text: str) -> tuple[str, dict[str, Any]]:
    kind = item_kind(state, index)
    logprobs: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
    return f"response.{_STREAMED[kind]}.delta", {**_place(state, index), "delta": text, **logprobs}


def _delta(state: RunState, index: int, text: str, numbers: _Numbers) -> bytes:
    name, fields = _delta_fields(state, index, text)
    return numbers.event(name, **fields)


def _delta_frame(state: RunState, index: int) -> bytes:
    """The frame of an empty delta, numbered 0: a pattern for those that come."""
    name, fields = _delta_fields(state, index, "")
    return _event(name, 0, fields)


def _close(before: RunState, after: RunState, index: int, numbers: _Numbers) -> bytes:
    """End an item, with what it said even if that has just been taken back."""
    taken_back = after.items[index].void and not after.items[index].closed
    text = item_text(before if taken_back else after, index)
    return _done(after, index, text, annotations(after, index), item_status(after, index), numbers)


def _done(state: RunState, index: int, text: str, cited: list[dict[str, Any]], status: str, numbers: _Numbers) -> bytes:
    kind = item_kind(state, index)
    place, whole = _place(state, index), part(kind, text, cited)
    frames = [
        numbers.event("response.output_text.annotation.added", **place, annotation_index=i, annotation=annotation)
        for i, annotation in enumerate(cited)
    ]
    logprobs: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
    item = item_shell(state, index, [whole], status)
    frames += [
        numbers.event(f"response.{_STREAMED[kind]}.done", **place, text=text, **logprobs),
        numbers.event("response.content_part.done", **place, part=whole),
        numbers.event("response.output_item.done", output_index=index, item=item),
    ]
    return b"".join(frames)


def _call(state: RunState, index: int, numbers: _Numbers) -> bytes:
    item = function_call(state, index)
    begun = function_call(state, index, begun=True)
    place = {"item_id": item["id"], "output_index": index}
    name, arguments = item["name"], item["arguments"]
    return b"".join(
        [
            numbers.event("response.output_item.added", output_index=index, item=begun),
            numbers.event("response.function_call_arguments.delta", **place, delta=arguments),
            numbers.event("response.function_call_arguments.done", **place, name=name, arguments=arguments),
            numbers.event("response.output_item.done", output_index=index, item=item),
        ]
    )


def _late(state: RunState, numbers: _Numbers) -> bytes:
    """A message that comes whole with the end."""
    if not has_late_message(state):
        return b""
    index = len(state.items)
    cited = late_message(state)["content"][0]["annotations"]
    opened = _open(state, index, numbers) + _delta(state, index, state.output, numbers)
    return opened + _done(state, index, state.output, cited, "completed", numbers)


def _terminal(state: RunState, numbers: _Numbers) -> bytes:
    """The schema has no event for `cancelled`: it comes as `response.incomplete` with that status."""
    return numbers.event(_ENDS.get(response_status(state), "response.incomplete"), response=response_object(state))
