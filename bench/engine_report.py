"""What `engine_suite.py` measured, as tables: a number and its range, and the goals, met or missed."""

from bench.engine_measures import Numbers
from bench.engine_suite import GOALS, MEASURES

Results = dict[str, Numbers]
"""Of each measure that was taken."""


def tables(results: Results) -> str:
    """All that was taken, the goals first."""
    goals = _goals(results)
    lines = ["## Goals", "", *goals] if len(goals) > 2 else []
    for name, numbers in results.items():
        lines += ["", *_numbers(name, numbers)]
    return "\n".join(lines) + "\n"


def section(name: str, numbers: Numbers, where: str) -> str:
    """One measure with its goals, where and how it was taken."""
    title, *table = _numbers(name, numbers)
    goals = _goals({name: numbers})
    taken = [f"`scripts/bench engines --only {name}`, {where}", ""]
    return "\n".join([title, "", *taken, *([*goals, ""] if len(goals) > 2 else []), *table[1:]])


def _goals(results: Results) -> list[str]:
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    for goal in GOALS:
        value = results.get(goal.measure, {}).get(goal.number)
        if value is not None:
            end = "met" if goal.met(value) else "**missed**"
            lines.append(f"| {goal.text} | {goal.wanted} | {value:.3g} | {end} |")
    return lines


def _numbers(name: str, numbers: Numbers) -> list[str]:
    rows = [f"| {key} | {_shown(key, numbers)} |" for key in numbers if not _is_an_end(key, numbers)]
    note = [MEASURES[name].note, ""] if MEASURES[name].note else []
    return [f"## {name}: {MEASURES[name].title}", "", *note, "| | |", "|---|---|", *rows]


def _is_an_end(key: str, numbers: Numbers) -> bool:
    """Of a range, which is told with its median."""
    name = key.removesuffix("_least").removesuffix("_most")
    return name != key and name in numbers


def _shown(key: str, numbers: Numbers) -> str:
    ends = [numbers[end] for end in (f"{key}_least", f"{key}_most") if end in numbers]
    least_and_most = f" [{'-'.join(map(_number, ends))}]" if ends else ""
    return f"{_number(numbers[key])}{least_and_most}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
