"""`scripts/chaos`: break it, and print one row of what was lost."""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from chaos.campaign import Campaign
from chaos.headrace import ROOT, Headrace
from chaos.orders import orders
from chaos.row import table
from chaos.system import System

RIVALS = ("agno", "langgraph")
_GOAL_S = 5.0


def main() -> int:
    arguments = _parser().parse_args()
    system = _system(arguments)
    if system is None:
        return 1
    alone = arguments.rival == "langgraph" or (not arguments.rival and arguments.store == "embedded")
    instances = arguments.instances or (1 if alone else 2)
    wanted = orders(
        seed=arguments.seed,
        instances=instances,
        clients=arguments.clients,
        seconds=arguments.seconds,
        kills=arguments.kills,
        cuts=arguments.cuts,
    )
    say(f"{wanted}")
    with _folder(keep=arguments.keep) as folder:
        row, findings = asyncio.run(Campaign(system, wanted, folder, say=say).run())
    if arguments.json:
        print(json.dumps(row.cells() | {"findings": [str(finding) for finding in findings]}, ensure_ascii=False))
    else:
        print(table([row]))
        print(f"\n{row.recoveries} recoveries undisturbed; the slowest of all took {row.silence_s:.2f} s.")
        print(f"The longest gap was {row.gap_longest}.")
    return 0 if row.passed and row.recovery_s <= _GOAL_S else 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _system(arguments: argparse.Namespace) -> System | None:
    if arguments.rival:
        made: System | None = import_module(f"chaos.rivals.{arguments.rival}").make()
        return made
    return Headrace(arguments.store)


@contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    """On the disk the repository is on: a tmpfs would make durability look free."""
    home = ROOT / ".cache" / "chaos"
    home.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=home))
    try:
        yield folder
    finally:
        if keep:
            say(f"logs and data: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--store", choices=("redis", "embedded"), default="redis")
    parser.add_argument("--rival", choices=RIVALS, help="break that one instead, by the same plan")
    parser.add_argument("--instances", type=int, help="2 by default, 1 with the embedded store or langgraph")
    parser.add_argument("--clients", type=int, default=20, help="each has one run at a time")
    parser.add_argument("--seconds", type=float, help="a minute by default, or what kills and cuts need")
    parser.add_argument("--kills", type=int, help="processes to kill or freeze; one every 3 seconds by default")
    parser.add_argument("--cuts", type=int, help="connections to cut; 7 a second by default")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--json", action="store_true", help="the row, and everything that was found")
    parser.add_argument("--keep", action="store_true", help="leave logs and data in .cache/chaos")
    return parser
