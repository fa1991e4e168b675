"""A rival in a virtual environment of its own: never in ours, never a dependency of the project."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGNO = ROOT / ".venvs" / "agno"
_PACKAGES = ("agno[os,sqlite]", "greenlet", "uvloop", "httptools", "orjson")
_IMPORTS = "agno.os, agno.db.sqlite, multipart, uvloop, httptools"


def agno_python() -> Path | None:
    return environment_of("agno", _PACKAGES, _IMPORTS)


def environment_of(name: str, packages: tuple[str, ...], imports: str) -> Path | None:
    """The interpreter of `.venvs/<name>`, which can `import` what it should; `packages` are installed where it cannot.

    None, with the reason on stderr, where that fails.
    """
    folder = ROOT / ".venvs" / name
    python = folder / "bin" / "python"
    if _works(python, imports):
        return python
    print(f"making {folder.relative_to(ROOT)} …", file=sys.stderr)
    try:
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as exc:
        print(f"{name} cannot be installed here and is left out: {exc}", file=sys.stderr)
        return None
    if not _works(python, imports):
        print(f"{name} is installed in {folder.relative_to(ROOT)} and cannot import {imports}", file=sys.stderr)
        return None
    return python


def package_versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, sys\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True, timeout=60)
    return dict(line.split() for line in done.stdout.splitlines())


def _works(python: Path, imports: str) -> bool:
    if not python.exists():
        return False
    probe = [str(python), "-c", f"import {imports}"]
    return subprocess.run(probe, capture_output=True, timeout=120).returncode == 0
