"""A rival in a virtual environment of its own: never in ours, never a dependency of the project."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGNO = ROOT / ".venvs" / "agno"
_PACKAGES = ("agno[os,sqlite]", "greenlet", "uvloop", "httptools", "orjson")


def agno_python() -> Path | None:
    """The interpreter that can run Agno, made on first use; None, with the reason on stderr, where it cannot be."""
    python = AGNO / "bin" / "python"
    if _works(python):
        return python
    print(f"making {AGNO.relative_to(ROOT)} for Agno …", file=sys.stderr)
    try:
        venv.create(AGNO, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *_PACKAGES], check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as exc:
        print(f"Agno cannot be installed here and is left out: {exc}", file=sys.stderr)
        return None
    return python if _works(python) else None


def package_versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, sys\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True, timeout=60)
    return dict(line.split() for line in done.stdout.splitlines())


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    probe = [str(python), "-c", "import agno.os, agno.db.sqlite, multipart, uvloop, httptools"]
    return subprocess.run(probe, capture_output=True, timeout=120).returncode == 0
