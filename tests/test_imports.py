"""Who may import whom. The table is the one in ARCHITECTURE.md, "Rooms"; it is read from there and nowhere else."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"

DRIVERS: dict[str, str | tuple[str, ...]] = {
    "redis": "log/redis/",
    "hiredis": "log/redis/wire.py",
    "xllamacpp": "engine/llamacpp",
    "openvino": "engine/openvino/model.py",
    "openvino_genai": "engine/openvino/model.py",
    "transformers": "engine/transformers/model/",
    "torch": "engine/transformers/model/",
    "xgrammar": "engine/transformers/model/",
    "safetensors": "engine/transformers/model/",
    "vllm": "engine/vllm/inprocess.py",
    "sqlite3": ("log/", "testing/"),
    "uvicorn": "http/serving.py",
    "starlette": "",
    "fastapi": "",
    "pydantic": "",
}
"""Foreign modules that belong to one place (beginnings of paths); empty: to none."""

HEAVY = ("aiohttp", "uvicorn", "uvloop", "websockets", "numpy", "xllamacpp", "sqlite3", "asyncio", "multiprocessing")
"""What `import headrace` must not pull in."""


def room_of(path: Path) -> str:
    """`wire` for wire/sse.py, `runs` for runs.py; the package's own __init__ is `__init__`."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def table() -> dict[str, frozenset[str]]:
    """Room → what it may import: rooms, or single modules of one (`log.ports`); `all` for everything."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## Rooms")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/.]+)` \|.*\| ([^|]+) \|$", section, re.MULTILINE)
    return {re.sub(r"(/|\.py)$", "", room): allowed(cell) for room, cell in rows}


def allowed(cell: str) -> frozenset[str]:
    names = (name.strip() for name in re.sub(r"\(.*?\)", "", cell).split(","))
    return frozenset(name for name in names if name not in ("", "–"))


def imports(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            yield from _imported_from(node)


def _imported_from(node: ast.ImportFrom) -> Iterator[str]:
    if node.module != "headrace":
        yield node.module or ""
        return
    for alias in node.names:
        if (SOURCE / alias.name).is_dir() or (SOURCE / f"{alias.name}.py").is_file():
            yield f"headrace.{alias.name}"


def permitted(module: str, may: frozenset[str]) -> bool:
    """Whether `headrace.room.module` is covered by the room or by the module itself."""
    inner = module.removeprefix("headrace.")
    return "all" in may or any(inner == name or inner.startswith(f"{name}.") for name in may)


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_room_stands_in_the_table() -> None:
    rooms = {room_of(path) for path in FILES if path.stat().st_size} - {"__init__"}
    assert rooms <= set(table())


def test_the_table_names_only_rooms_that_it_describes() -> None:
    named = {name.split(".")[0] for may in table().values() for name in may} - {"all"}
    assert named <= set(table())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    may = table().get(room, frozenset({"all"}))
    ours = [name for name in imports(path) if name.startswith("headrace.")]
    assert [name for name in ours if name.split(".")[1] != room and not permitted(name, may)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_drivers_stay_in_their_own_file(path: Path) -> None:
    where = path.relative_to(SOURCE).as_posix()
    foreign = {name.split(".")[0] for name in imports(path)}
    astray = [name for name, home in DRIVERS.items() if name in foreign and not (home and where.startswith(home))]
    assert astray == []


def test_wire_dialects_and_the_decisions_of_the_client_cannot_wait() -> None:
    pure = [p for p in FILES if room_of(p) in ("wire", "dialects", "state", "events", "messages")]
    pure += [SOURCE / "client" / f"{name}.py" for name in ("session", "hub", "frames", "retry", "problems")]
    for path in pure:
        foreign = {name.split(".")[0] for name in imports(path)}
        assert not foreign & {"asyncio", "aiohttp", "socket", "time", "anyio"}, path
        waits = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Await | ast.AsyncFunctionDef)]
        assert waits == [], path


def test_importing_headrace_pulls_in_nothing_heavy() -> None:
    check = f"import sys, headrace; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
