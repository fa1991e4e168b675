"""`headrace bench`: the benches live in the source tree, beside what they compare with."""

import argparse
import subprocess
from pathlib import Path

import headrace
from headrace.errors import ConfigError


def main(options: argparse.Namespace) -> int:
    script = Path(headrace.__file__).parents[2] / "scripts" / "bench"
    if not script.is_file():
        raise ConfigError(
            "The benches are not part of the installed package.",
            hint="Clone the repository and run scripts/bench there.",
        )
    return subprocess.run([str(script), *options.arguments], check=False).returncode
