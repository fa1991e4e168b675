"""`headrace config`, and how a command's flags become a configuration."""

import argparse
import os
import sys
from pathlib import Path

from headrace.config import Loaded, load


def configured(options: argparse.Namespace) -> Loaded:
    """The configuration of this command line. Raises ConfigError."""
    flags = {key: value for key, value in vars(options).items() if "." in key}
    file = getattr(options, "config", None)
    return load(flags=flags, environment=os.environ, file=Path(file) if file else None)


def main(options: argparse.Namespace) -> int:
    rows = [(setting.key, setting.shown, setting.source) for setting in configured(options).settings()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for key, value, source in rows:
        sys.stdout.write(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}\n")
    return 0
