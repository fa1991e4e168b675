"""The fake model that every measured server runs: the same coroutine, the same timers, the same stamps.

A request carries its plan as text (`tokens=1000 rate=20 first=0.5 stamp=emit`), so that a server needs no other
interface than the one it has. A token is five characters: the moment it was made, in microseconds of the monotonic
clock modulo 2^30. The load client, on the same host, subtracts. Standard library only: rivals import this too.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from time import monotonic_ns
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_VALUES = {char: value for value, char in enumerate(_ALPHABET)}
WRAP = 1 << 30
LAST = "-END-"


class Plan(NamedTuple):
    """`rate` is tokens per second, 0 for as fast as the loop goes; `first` is seconds before the first token.

    `stamp` is `emit` (when the token was made) or `due` (when it should have been made: lateness of the loop counts).
    The first `burst` tokens come as fast as the loop goes, the others at `rate`.
    With `linger` the model says one more token, LAST, and waits so many seconds before it ends.
    """

    tokens: int = 100
    rate: float = 20.0
    first: float = 0.0
    stamp: str = "emit"
    linger: float = 0.0
    burst: int = 0

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in zip(self._fields, self, strict=True))


def parse_plan(text: str) -> Plan:
    given = dict(part.split("=", 1) for part in text.split())
    return Plan(
        tokens=int(given.get("tokens", 100)),
        rate=float(given.get("rate", 20)),
        first=float(given.get("first", 0)),
        stamp=given.get("stamp", "emit"),
        linger=float(given.get("linger", 0)),
        burst=int(given.get("burst", 0)),
    )


def stamp(us: int) -> str:
    """Five characters for a time in microseconds."""
    return _ALPHABET[(us >> 24) & 63] + _PAIRS[(us >> 12) & 4095] + _PAIRS[us & 4095]


def age_us(token: str, now_us: int) -> int:
    """Microseconds since the token's stamp; negative if it lies ahead."""
    then = 0
    for char in token:
        then = (then << 6) | _VALUES[char]
    age = (now_us - then) % WRAP
    return age if age < WRAP // 2 else age - WRAP


async def generate(plan: Plan, make: Callable[[str], T], end: T | None = None) -> AsyncGenerator[T, None]:
    """The tokens of a plan, each wrapped by `make`, then `end` if there is one. A late model does not catch up in
    bursts: one token per tick."""
    if plan.first:
        await asyncio.sleep(plan.first)
    for _ in range(plan.burst):
        await asyncio.sleep(0)
        yield make(stamp(monotonic_ns() // 1000))
    due = monotonic_ns()
    period = int(1e9 / plan.rate) if plan.rate else 0
    by_due = plan.stamp == "due"
    for _ in range(plan.tokens - plan.burst):
        left = due - monotonic_ns() if period else 0
        await asyncio.sleep(left / 1e9 if left > 0 else 0)
        yield make(stamp((due if by_due else monotonic_ns()) // 1000))
        due += period
    if plan.linger:
        yield make(LAST)
        await asyncio.sleep(plan.linger)
    if end is not None:
        yield end
