"""What it takes to come back to a run, and whether everything is there."""

from statistics import median

from bench.contestants import Contestant, Serving, serving
from bench.measures import Effort, Numbers
from bench.model import LAST, Plan
from bench.probe import Answer, ask
from bench.process import client_core, on_core

_AGNO_FEWER = 50
"""Agno drops the oldest events of a run beyond 10,000 and does not say so."""
_ENDED = b"\r\n0\r\n\r\n"


def resume(contestant: Contestant, effort: Effort, *, live: bool) -> Numbers:
    """A client comes back to `buffered` events: time to the first and to all of them. Nothing may be missing."""
    slack = _AGNO_FEWER if contestant.dialect == "agno" else 0
    plan = Plan(tokens=effort.buffered - slack, rate=0, linger=600 if live else 0)
    until = f'{LAST}"'.encode() if live else _ENDED
    with serving(contestant) as server, on_core(client_core()):
        original = ask(server.port, contestant.start_request(plan), until=until, timeout=120)
        times = 5 if contestant.dialect == "agno" else 20
        answers = [_come_back(server, original, until) for _ in range(times)]
    return {
        "first_ms": median(a.first for a in answers) * 1e3,
        "all_ms": median(a.all for a in answers) * 1e3,
        "worst_all_ms": max(a.all for a in answers) * 1e3,
    }


def _come_back(server: Serving, original: Answer, until: bytes) -> Answer:
    request = server.contestant.resume_request(original.run_id, 0)
    answer = ask(server.port, request, until=until, timeout=120)
    wanted = original.text
    if answer.text[: len(wanted)] != wanted:
        raise AssertionError(f"{server.contestant.name}: {len(answer.text)} of {len(wanted)} bytes of text came back")
    return answer
