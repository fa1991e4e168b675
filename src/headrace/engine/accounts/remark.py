"""A remark on how a model server is set up, and the one about memory that several kinds of servers share."""

from typing import Literal

import msgspec

MOST_OF_MEMORY = 0.8
"""The part of a GPU's memory that may be planned for. The rest is for what the profiling at a server's start has not
seen: a larger picture, a new adapter, fragments, another process."""

TOLERANCE = 0.02
"""What one sets above it to fit a little more context is not worth a remark: 1.6 GB of 80."""


class Remark(msgspec.Struct, frozen=True):
    """A `note` is something that an operator should look at."""

    level: Literal["ok", "note"]
    text: str


def head_room(part: float, advice: str) -> Remark:
    """`part` of the memory of a GPU is taken. `advice` says how to take less of it."""
    if part > MOST_OF_MEMORY + TOLERANCE:
        return Remark("note", f"It takes {part:.0%} of the memory of a GPU. {advice}")
    return Remark("ok", f"head-room: it takes {part:.0%} of the memory of a GPU")
