"""`scripts/bench`: one command, one run, everybody side by side."""

import argparse
import signal
import sys

import msgspec

from bench.contestants import NAMES
from bench.process import say
from bench.report import machine, tables, write_results
from bench.suites import SUITES, take


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that whoever was started is stopped
    if arguments.command == "profile":
        from bench.profile import profile  # py-spy's and cProfile's side is nobody else's business

        return profile(streams=arguments.streams, seconds=arguments.seconds)
    if arguments.command == "demo":
        from bench.demo import main as measure_demo  # needs the embedded model

        return measure_demo()
    if arguments.command == "engines":
        from bench import engines  # needs the embedded model

        if arguments.list:
            print(engines.listing())
            return 0
        return engines.main(
            engines.Wanted(
                quick=arguments.quick,
                only=arguments.only,
                everything=arguments.all,
                as_json=arguments.json,
                write=arguments.write,
            )
        )
    only = tuple(arguments.only.split(",")) if arguments.only else None
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    wanted = arguments.measures.split(",") if arguments.measures else None
    suite = tuple(measure for measure in SUITES[arguments.command] if wanted is None or measure.name in wanted)
    results = take(suite, rounds=rounds, quick=arguments.quick, only=only, ahead=arguments.ahead)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    else:
        print(f"{machine()}\n\n{tables(results)}")
    if arguments.write:
        say(f"wrote {write_results(results, 'scripts/bench ' + ' '.join(sys.argv[1:]))}")
    return 0 if results else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, suite in SUITES.items():
        command = commands.add_parser(name, help=", ".join(measure.name for measure in suite))
        command.add_argument("--quick", action="store_true", help="one short round, for a look")
        command.add_argument("--rounds", type=int, help="3 by default, 1 with --quick")
        command.add_argument("--only", help=f"some of {','.join(NAMES)}")
        command.add_argument("--measures", help="some of this suite's measures")
        command.add_argument("--ahead", action="store_true", help="light measures go before other work (root)")
        command.add_argument("--json", action="store_true", help="every round's numbers")
        command.add_argument("--write", action="store_true", help="put the tables into bench/RESULTS.md")
    commands.add_parser("demo", help="what 1, 4, 16 and 50 users of the demo get")
    engines = commands.add_parser("engines", help="the embedded engine, and what Headrace adds to it")
    engines.add_argument("--quick", action="store_true", help="short, for a look")
    some = engines.add_mutually_exclusive_group()
    some.add_argument("--only", help="some measures and tables, with commas")
    some.add_argument("--all", action="store_true", help="also every table that has a command of its own, in turn")
    some.add_argument("--list", action="store_true", help="what there is, how long it takes, what RESULTS.md has of it")
    engines.add_argument("--json", action="store_true", help="the numbers")
    engines.add_argument("--write", action="store_true", help="put each measure's table into bench/RESULTS.md")
    profile = commands.add_parser("profile", help="where Headrace spends its time")
    profile.add_argument("--streams", type=int, default=200, help="0: runs of one token, one by one")
    profile.add_argument("--seconds", type=float, default=8.0)
    return parser
