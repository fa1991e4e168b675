"""What the embedded server's process is told, and how servers find a process that was told the same.

A process belongs to its parameters, not to who started it: `home/<key>/process.json` (0600) says where it listens and
with which secret. Whoever finds it there, connects and is let in, uses it; a file whose process is gone is replaced.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

Pooling = Literal["mean", "cls", "last"]
"""Which of the tokens' vectors a text gets: their mean, the first one's, the last one's."""

_ENDS = 1 << 20  # bytes at either end of a model file that stand for all of it


class LlamaCppParameters(msgspec.Struct, frozen=True, kw_only=True):
    """`model_id` is the file's fingerprint. `context` is tokens per slot, `kv` the type of the cache (`f16`, `q8_0`,
    `q4_0`), `batch` how many tokens of all answers and prompts are computed in one step. `generates` is False for a
    model that only embeds; with `pooling` texts of up to `longest_text` tokens are embedded. `ngram` guesses ahead from
    what was said before, `draft_path` is the small model that guesses ahead. With `snapshots`, a folder, the state of a
    slot can be saved. `linger` is how many seconds the process waits for a server when the last one has gone without a
    word. `build` is whose process it is: another version starts its own.
    """

    model_path: str
    model_id: str
    alias: str
    threads: int
    context: int
    slots: int
    kv: str
    batch: int
    generates: bool = True
    pooling: Pooling | None = None
    longest_text: int = 0
    ngram: bool = False
    draft_path: str | None = None
    snapshots: str | None = None
    prompts_mib: int = 256
    linger: float = 0.0
    build: str = ""

    @property
    def key(self) -> str:
        """Equal for equal parameters, and fit to be the name of a folder."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class ProcessAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process lets servers in: `port` on the loopback. `secret` opens it, and is its HTTP server's key too."""

    pid: int
    port: int
    secret: str
    parameters: LlamaCppParameters


class ProcessState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it says to a server that it let in: the URL of its HTTP server and of the one that embeds, which is the same
    where the model does nothing else; or why it has none."""

    url: str = ""
    embedder: str = ""
    failed: str = ""


def fingerprint(model: Path) -> str:
    """Tells model files apart without reading gigabytes: by size, by the header and by the last tensors."""
    digest = hashlib.sha256()
    with model.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(size.to_bytes(8, "little"))
        for place in (0, max(0, size - _ENDS)):
            file.seek(place)
            digest.update(file.read(_ENDS))
    return digest.hexdigest()


def folder(home: Path, parameters: LlamaCppParameters) -> Path:
    """Of all processes with these parameters; for its owner only."""
    path = home / parameters.key
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def read_address(place: Path) -> ProcessAddress | None:
    """Of the process that was here last. It may be gone."""
    try:
        return msgspec.json.decode((place / "process.json").read_bytes(), type=ProcessAddress)
    except (OSError, msgspec.DecodeError):
        return None


def write_address(place: Path, address: ProcessAddress) -> None:
    """Whole or not at all, and never readable by others."""
    partial = place / f".process.{address.pid}"
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(address))
    os.replace(partial, place / "process.json")


def remove_address(place: Path, pid: int) -> None:
    """Unless another process has taken the place, or is just about to."""
    with contextlib.suppress(OSError), locked(place) as alone:
        found = read_address(place) if alone else None
        if found is not None and found.pid == pid:
            (place / "process.json").unlink()


@contextlib.contextmanager
def locked(place: Path) -> Iterator[bool]:
    """Whether nobody else is in here at this moment. The lock goes with its process, however that ends."""
    with os.fdopen(os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
