"""The files that states are saved in.

llama.cpp believes every byte of a file, and an answer that goes on from a wrong one is wrong. So it writes to a part,
which gets its sum at its end and takes its file's place when it is whole; a file without its sum is not read. Each save
has a part of its own: one that was given up may still be written to, by the model's process or a thread of ours.
"""

import secrets
import time
import zlib
from pathlib import Path
from typing import IO

_KEPT = 32  # files, a few MB each
_KEPT_S = 600.0  # a run that nobody has taken up by then never goes on here
_SUM = 4  # bytes, behind what llama.cpp reads
_BLOCK = 1 << 20


def new_part(file: Path) -> Path:
    """Where one save of a state is written to; what the file has is good until this is whole and takes its place."""
    return file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")


def seal(part: Path) -> None:
    """Put the sum at its end. It reads all of it. Raises OSError."""
    with part.open("r+b") as written:
        total = _sum_of(written, part.stat().st_size)
        written.write(total)


def is_whole(file: Path) -> bool:
    """Whether the sum at its end is its own. It reads all of it."""
    try:
        with file.open("rb") as written:
            return _sum_of(written, file.stat().st_size - _SUM) == written.read()
    except OSError:
        return False


def make_room(folder: Path) -> None:
    """Delete what nobody will take up again, and parts that nobody finished."""
    files = sorted(folder.glob("*.kv*"), key=_age)
    for number, file in enumerate(files):
        if number >= _KEPT or _age(file) > _KEPT_S:
            file.unlink(missing_ok=True)


def _sum_of(file: IO[bytes], size: int) -> bytes:
    """Of the next `size` bytes, which are read."""
    total = 0
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        total = zlib.crc32(block, total)
        size -= len(block)
    return total.to_bytes(_SUM, "little")


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
