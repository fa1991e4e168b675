"""Which of the process' slots an answer is given."""


class Slots:
    """Who gets which slot. An answer of a session gets the one that has its prefix, if it is free, else the one that
    was left the longest time ago. Nobody waits here (but in `line/engine_line.py`): never more answers than slots are
    under way.

    A server that shares the process gives out the same slots: its answers and ours then wait for each other in there,
    and a state that is overwritten in between is computed anew.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._sessions: dict[int, str | None] = {}

    def take(self, session: str | None) -> int:
        known = [slot for slot in self._free if session is not None and self._sessions.get(slot) == session]
        slot = (known or self._free)[0]
        self._free.remove(slot)
        self._sessions[slot] = session
        return slot

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
