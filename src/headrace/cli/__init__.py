"""The `headrace` command. Each subcommand is a module of its own, imported only when it is asked for, so that
`--help` and `--version` cost nothing.

Exit codes: 0 fine, 1 the run (or the command) failed, 2 wrong usage or configuration, 130 Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    from headrace.cli.arguments import parser

    options = parser().parse_args(arguments)
    if options.command is None:
        parser().print_help()
        return USAGE
    from headrace.errors import HeadraceError

    try:
        code: int = import_module(f"headrace.cli.{options.module}").main(options)
        sys.stdout.flush()
    except HeadraceError as error:
        if options.debug:
            raise
        return complain(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`). Python would complain about it once more while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def complain(error: Exception) -> int:
    """What went wrong in a line, what to do in another, and the exit code for it."""
    from headrace.errors import ConfigError, HeadraceError, RequestError

    print(f"headrace: {error}", file=sys.stderr)
    if isinstance(error, HeadraceError) and error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    return USAGE if isinstance(error, ConfigError | RequestError) else FAILED
