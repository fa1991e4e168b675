"""What the doctor found."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """With one that is `bad` the doctor fails; a `note` is something to look at."""

    level: Literal["ok", "note", "bad"]
    text: str
