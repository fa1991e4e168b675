"""The whole harness: against a system made for the test, sound or faulty, and in short against Headrace itself."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.campaign import Campaign
from chaos.headrace import Headrace
from chaos.ledger import VARIABLE, write_down
from chaos.orders import Orders, orders
from chaos.plan import RunPlan, next_turn, plan_run, read_question
from chaos.process import Process
from chaos.row import Row, table
from chaos.system import Final, Seen, System
from harness import run_async

BRIEFLY = Orders(seed=7, instances=1, clients=2, seconds=0.2, kills=0, cuts=0, settle_s=0.0, patience_s=1.0, late_s=0.0)


class Puppet:
    """A system without processes, whose runs end at once. `spoil` changes what its clients are shown."""

    name = "puppet"
    kinds: Sequence[str] = ("sse", "plain")
    processes: Sequence[Process] = ()

    def __init__(self, spoil: Callable[[list[Seen]], list[Seen]] = lambda seen: seen, *, calls: int = 1) -> None:
        self.url = "http://127.0.0.1:9"
        self._spoil = spoil
        self._calls = calls
        self._plans: dict[str, RunPlan] = {}

    async def start(self, instances: int, folder: Path) -> None: ...

    async def stop(self) -> None: ...

    async def begin(self, client: int, plan: RunPlan) -> str:
        self._plans[plan.name] = plan
        for call in plan.calls:
            for _ in range(self._calls):
                write_down(call.tool, call.label, "-")
        return plan.name

    async def follow(self, run_id: str, kind: str) -> AsyncIterator[Seen]:
        for seen in self._spoil(self._records(run_id)):
            yield seen

    async def final(self, run_id: str) -> Final:
        plan, records = self._plans[run_id], self._records(run_id)
        return Final(status="completed", text=plan.text, terminals=1, records=records)

    def _records(self, run_id: str) -> list[Seen]:
        pieces = [piece for turn in self._plans[run_id].turns for piece in turn.pieces]
        deltas = [Seen(seq=at, kind="text.delta", at=1.0, text=piece) for at, piece in enumerate(pieces, 1)]
        return [*deltas, Seen(seq=len(deltas) + 1, kind="run.finished", at=1.0, terminal=True)]


def campaign(system: System, wanted: Orders, folder: Path, *, deadline: float = 10.0) -> Row:
    row, findings = run_async(Campaign(system, wanted, folder, say=print).run(), deadline=deadline)
    print(table([row]), *findings, sep="\n")
    return row


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "ledger"))


def test_a_system_that_does_everything_right_passes(tmp_path: Path) -> None:
    row = campaign(Puppet(), BRIEFLY, tmp_path)
    assert row.passed
    assert row.runs > 2


SPOILT: dict[str, tuple[Callable[[list[Seen]], list[Seen]], str]] = {
    "a record is left out": (lambda seen: seen[1:], "lost"),
    "a record comes twice": (lambda seen: [seen[0], *seen], "duplicated"),
    "records change places": (lambda seen: [seen[1], seen[0], *seen[2:]], "reordered"),
    "a record is changed": (lambda seen: [replace(seen[0], data=b"?"), *seen[1:]], "altered"),
    "the text is another": (lambda seen: [replace(seen[0], text="?"), *seen[1:]], "text_differs"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_system_that_does_something_wrong_does_not_pass(what: str, tmp_path: Path) -> None:
    spoil, fault = SPOILT[what]
    row = campaign(Puppet(spoil), BRIEFLY, tmp_path)
    assert not row.passed
    assert row.faults[fault] >= row.runs


def test_tools_that_run_twice_or_never_do_not_pass(tmp_path: Path) -> None:
    assert campaign(Puppet(calls=2), BRIEFLY, tmp_path).faults["extra_tool_runs"] > 2
    (tmp_path / "ledger").unlink()
    assert campaign(Puppet(calls=0), BRIEFLY, tmp_path).faults["missed_tool_runs"] > 2


def test_a_client_that_never_comes_to_an_end_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    class Silent(Puppet):
        async def follow(self, run_id: str, kind: str) -> AsyncIterator[Seen]:
            await asyncio.Event().wait()
            yield Seen(seq=1, kind="text.delta", at=1.0)

    row = campaign(Silent(), BRIEFLY, tmp_path)
    assert row.faults["client_errors"] >= 2


def test_a_run_without_an_end_is_a_zombie(tmp_path: Path) -> None:
    class Endless(Puppet):
        async def final(self, run_id: str) -> Final:
            return Final(status="", text="", terminals=0)

    assert campaign(Endless(), BRIEFLY, tmp_path).faults["zombies"] >= 2


def test_a_run_that_cannot_be_read_at_once_is_asked_for_again(tmp_path: Path) -> None:
    class Broken(Puppet):
        refusals = 2

        async def final(self, run_id: str) -> Final:
            if self.refusals:
                self.refusals -= 1
                raise OSError("not now")
            return await super().final(run_id)

    assert campaign(Broken(), BRIEFLY, tmp_path).passed


def test_what_was_not_ordered_follows_from_the_rest() -> None:
    long = orders(seed=1, instances=2, clients=20, seconds=None, kills=500, cuts=10_000)
    assert long.seconds == 1500
    short = orders(seed=1, instances=2, clients=20, seconds=30, kills=None, cuts=None)
    assert (short.kills, short.cuts) == (10, 210)


def test_a_plan_is_found_again_in_its_question_and_said_to_the_end() -> None:
    plan = plan_run(7, "c1-2")
    assert read_question(plan.question) == plan
    text, asked = "", set[str]()
    while True:
        turn = next_turn(plan, asked)
        text += turn.text
        asked |= {call.label for call in turn.calls}
        if not turn.calls:
            break
    assert text == plan.text
    assert asked == {call.label for call in plan.calls}


def test_an_answer_that_was_cut_between_two_calls_makes_only_the_missing_one() -> None:
    plan = next(p for p in (plan_run(7, f"c0-{n}") for n in range(99)) if len(p.turns[0].calls) == 2)
    first, second = plan.turns[0].calls
    rest = next_turn(plan, {first.label})
    assert (rest.pieces, rest.calls) == ((), (second,))


def require(*programs: str) -> None:
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not installed: {', '.join(missing)}")


@pytest.mark.slow
def test_headrace_on_its_own_files_loses_and_doubles_nothing(tmp_path: Path) -> None:
    require("nginx")
    wanted = Orders(seed=20261129, instances=1, clients=4, seconds=4.0, kills=2, cuts=25, settle_s=2.0, patience_s=40.0)
    row = campaign(Headrace("embedded"), wanted, tmp_path, deadline=100)
    assert row.passed
    assert (row.kills, row.cuts >= 25) == (2, True)


@pytest.mark.slow
def test_two_instances_on_one_redis_lose_and_double_nothing(tmp_path: Path) -> None:
    require("nginx", "redis-server")
    wanted = Orders(seed=20261129, instances=2, clients=6, seconds=8.0, kills=5, cuts=50, settle_s=3.0, patience_s=40.0)
    row = campaign(Headrace("redis"), wanted, tmp_path, deadline=100)
    assert row.passed
    assert (row.kills, row.cuts >= 50) == (5, True)
