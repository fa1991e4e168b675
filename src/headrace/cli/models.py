"""`headrace models`: what the embedded engine can run, and how it gets here."""

import argparse
import sys
from functools import partial

from headrace.cli.terminal import ProgressBar
from headrace.engine.models import MODELS, install, installed, model, model_path
from headrace.errors import ConfigError

DEFAULT = "smollm2"


def main(options: argparse.Namespace) -> int:
    if options.action == "install":
        return _install(options.name or DEFAULT)
    if options.name:
        raise ConfigError("A name goes with install.", hint=f"headrace models install {options.name}")
    return _list()


def _list() -> int:
    for name, known in MODELS.items():
        there = installed(name)
        where = str(there) if there else f"not installed; {known.download_size / 1e6:.0f} MB to download"
        sys.stdout.write(f"{name:<10} {known.title:<32} {','.join(known.languages):<6} {where}\n")
    return 0


def _install(name: str) -> int:
    wanted = model(name)
    there = installed(name)
    if there is not None:
        print(f"{wanted.title} is installed: {there}")
        return 0
    print(f"{wanted.title}, {wanted.download_size / 1e6:.0f} MB, to {model_path(name).parent}", file=sys.stderr)
    print(f"Licence: {wanted.licence}, {wanted.licence_url}", file=sys.stderr)
    bar = ProgressBar()
    print(install(name, partial(bar, f"Installing {name}")))
    return 0
