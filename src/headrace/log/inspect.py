"""A journal directory in words, one line per entry. Reads files only: the log may be open elsewhere.

python -m headrace.log.inspect DIRECTORY
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.log.entries import Damage, Entry, read_entries, split_frames
from headrace.log.segments import segment_numbers, segment_path
from headrace.wire.codec import frame_seq, frame_type


def describe(directory: Path) -> Iterator[str]:
    """Lines: segment, byte, kind, run, seqs and the types of the records; damage as it stands."""
    for number in segment_numbers(directory):
        path = segment_path(directory, number)
        for item in read_entries(path.read_bytes()):
            yield f"{path.name} {_damage(item) if isinstance(item, Damage) else _entry(item)}"


def _damage(damage: Damage) -> str:
    return f"{damage.start:>10} DAMAGED, {damage.end - damage.start} bytes"


def _entry(entry: Entry) -> str:
    head = f"{entry.offset:>10} {entry.kind:<8} {entry.run_id}"
    if entry.kind == "claim":
        return f"{head} {entry.payload.decode().strip()}"
    records = entry.payload if entry.kind == "records" else entry.payload.partition(b"\n")[2]
    frames = split_frames(records)
    types = sorted({frame_type(frame) for frame in frames})
    return f"{head} {frame_seq(frames[0])}-{frame_seq(frames[-1])} {' '.join(types)}"


if __name__ == "__main__":
    for line in describe(Path(sys.argv[1])):
        print(line)
