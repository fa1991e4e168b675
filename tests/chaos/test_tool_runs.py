"""How often a tool may run: fabricated ledgers, kills and freezes."""

from chaos.evidence import Blow, Kind
from chaos.ledger import Execution
from chaos.plan import EFFECTS, PlannedCall, PlannedTurn, RunPlan
from chaos.tool_runs import judge_tools, missed_tools

REPEATABLE = [tool for tool, effect in EFFECTS.items() if effect != "once"]


def planned(tool: str) -> RunPlan:
    call = PlannedCall(tool=tool, label="c0-0/1.0", ms=0)
    return RunPlan(seed=7, name="c0-0", rate=25.0, turns=(PlannedTurn(pieces=(), calls=(call,)),))


def ran(tool: str, *times: float, pid: int = 1) -> list[Execution]:
    return [Execution(label="c0-0/1.0", tool=tool, call_id="call-1", pid=pid, at=at) for at in times]


def blow(at: float, until: float, *, kind: Kind = "kill", pid: int = 1) -> Blow:
    return Blow(kind=kind, role="instance", target="instance-1", pid=pid, at=at, until=until)


def extra(tool: str, executions: list[Execution], *blows: Blow, settled: dict[str, float] | None = None) -> int:
    return sum(finding.count for finding in judge_tools([planned(tool)], executions, settled or {}, blows))


def test_one_execution_each_is_right() -> None:
    assert [extra(tool, ran(tool, 1.0)) for tool in EFFECTS] == [0, 0, 0]


def test_a_once_tool_that_ran_again_is_extra_whatever_happened() -> None:
    assert extra("send", ran("send", 1.0, 3.0), blow(2.0, 2.5)) == 1
    assert extra("send", ran("send", 1.0, 3.0, 4.0), blow(2.0, 2.5)) == 2


def test_another_tool_may_run_again_after_a_kill_and_not_without_one() -> None:
    for tool in REPEATABLE:
        assert extra(tool, ran(tool, 1.0, 3.0), blow(2.0, 2.5)) == 0
        assert extra(tool, ran(tool, 1.0, 3.0)) == 1
        assert extra(tool, ran(tool, 1.0, 3.0), blow(0.2, 0.5)) == 1
        assert extra(tool, ran(tool, 1.0, 3.0), blow(3.5, 4.0)) == 1


def test_a_tool_may_run_again_while_an_instance_is_still_away() -> None:
    assert extra("put", ran("put", 1.0, 3.0), blow(0.5, 4.0)) == 0


def test_a_call_whose_result_was_there_is_extra_when_it_runs_again() -> None:
    assert extra("put", ran("put", 1.0, 3.0), blow(2.0, 2.5), settled={"call-1": 1.5}) == 1
    assert extra("put", ran("put", 1.0, 3.0), blow(2.0, 2.5), settled={"call-1": 3.5}) == 0
    assert extra("put", ran("put", 1.0, 3.0009), blow(2.0, 2.5), settled={"call-1": 3.0}) == 0


def test_a_frozen_worker_that_was_about_to_begin_may_begin_late() -> None:
    executions = ran("put", 1.0, pid=2) + ran("put", 3.0, pid=1)
    assert extra("put", executions, blow(0.5, 2.9, kind="pause", pid=1), settled={"call-1": 1.5}) == 0
    assert extra("put", executions, blow(0.5, 2.9, kind="pause", pid=2), settled={"call-1": 1.5}) == 1


def test_a_call_asked_for_again_under_another_id_is_the_same_call() -> None:
    again = Execution(label="c0-0/1.0", tool="send", call_id="call-2", pid=2, at=3.0)
    assert extra("send", [*ran("send", 1.0), again], blow(2.0, 2.5)) == 1


def test_a_tool_of_a_completed_run_that_never_ran_is_missed_unless_it_must_not_run_twice() -> None:
    assert [len(missed_tools([planned(tool)], [])) for tool in ("look", "put", "send")] == [1, 1, 0]
    assert missed_tools([planned("put")], ran("put", 1.0)) == []
