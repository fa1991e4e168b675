"""What a run is to say and to call: a pure function of its seed and name, so that a server needs only the question.

The question is the plan's address (`chaos seed=7 name=c3-12`). A scripted model reads it from the conversation and says
`next_turn`; the judge computes the same plan and knows every character that must arrive. Standard library only.
"""

import functools
import json
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

EFFECTS = {"look": "none", "put": "idempotent", "send": "once"}
"""The tools, and what running each of them twice does (see `headrace.messages.Effect`)."""

_WORDS = (
    *("stream", "never", "lost", "run", "goes", "on", "a", "record", "café", "naïve", "Straße", "e\u0301tude"),
    *("水渠", "断线", "重连", "一个字也不丢", "日志", "记录", "。", "，", "繁體中文", "テスト", "한국어"),
    *("👋", "👩\u200d👩\u200d👧", "🇨🇳", "👍🏽", "🧑\u200d🚀", "𝕏"),
    *('"quoted"', "\\", "line\nbreak", "\u2028", "data: x", "<b>&amp;</b>", "\t"),
)
_MILLISECONDS = (0, 20, 150, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """`label` is unique in the whole campaign; the tool takes `ms` milliseconds and writes the label down first."""

    tool: str
    label: str
    ms: int

    @property
    def arguments(self) -> str:
        return json.dumps({"label": self.label, "ms": self.ms})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """One answer of the model: its text, in the pieces in which it comes, then its calls. The last turn has none."""

    pieces: tuple[str, ...]
    calls: tuple[PlannedCall, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """`rate` is pieces per second."""

    seed: int
    name: str
    rate: float
    turns: tuple[PlannedTurn, ...]

    @property
    def question(self) -> str:
        """What the user asks: `read_question` finds the plan in it."""
        return f"chaos seed={self.seed} name={self.name}"

    @property
    def text(self) -> str:
        """Everything the run says, over all its turns."""
        return "".join(turn.text for turn in self.turns)

    @property
    def calls(self) -> tuple[PlannedCall, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)


@functools.lru_cache(maxsize=512)
def plan_run(seed: int, name: str) -> RunPlan:
    """Two to four turns of 10 to 40 pieces, all but the last with one or two calls; about 3 to 8 seconds in all."""
    chance = random.Random(f"{seed}/{name}")
    count = chance.randint(2, 4)
    return RunPlan(
        seed=seed,
        name=name,
        rate=chance.choice((15.0, 25.0, 50.0)),
        turns=tuple(_turn(chance, name, number, last=number == count) for number in range(1, count + 1)),
    )


def read_question(question: str) -> RunPlan:
    """The plan that a question names. Raises ValueError for another question."""
    words = question.split()
    if len(words) != 3 or words[0] != "chaos":
        raise ValueError(f"{question!r} names no plan")
    return plan_run(int(words[1].removeprefix("seed=")), words[2].removeprefix("name="))


def next_turn(plan: RunPlan, asked: Collection[str]) -> PlannedTurn:
    """What the model says next in a conversation that holds the calls with these labels.

    Where a crash cut an answer between two of its calls, the next answer makes only the missing ones: its text has
    been said.
    """
    for turn in plan.turns:
        missing = tuple(call for call in turn.calls if call.label not in asked)
        if missing and len(missing) < len(turn.calls):
            return PlannedTurn(pieces=(), calls=missing)
        if missing or not turn.calls:
            return turn
    raise AssertionError("the last turn has no calls")


def labels(arguments: Iterable[str]) -> set[str]:
    """The labels in the JSON arguments of calls."""
    return {json.loads(text)["label"] for text in arguments}


def _turn(chance: random.Random, name: str, number: int, *, last: bool) -> PlannedTurn:
    pieces = tuple(_piece(chance, number) for _ in range(chance.randint(10, 40)))
    if last:
        return PlannedTurn(pieces=pieces)
    calls = tuple(
        PlannedCall(tool=chance.choice(list(EFFECTS)), label=f"{name}/{number}.{at}", ms=chance.choice(_MILLISECONDS))
        for at in range(chance.randint(1, 2))
    )
    return PlannedTurn(pieces=pieces, calls=calls)


def _piece(chance: random.Random, number: int) -> str:
    """A word with a number, so that a piece that comes twice or in the wrong place changes the text."""
    return f"{chance.choice(_WORDS)}{number}.{chance.randrange(1000)} "
