import subprocess
import sys

import pytest

import headrace


def test_every_public_name_can_be_had() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
        assert name in dir(headrace)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = headrace.nothing_here  # type: ignore[attr-defined]


def test_importing_headrace_imports_nothing_that_takes_time() -> None:
    code = "import sys, headrace; print([m for m in ('asyncio', 'msgspec', 'typing', 'aiohttp') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, env=env())
    assert ran.stdout.strip() == "[]", ran.stderr


def env() -> dict[str, str]:
    return {"PYTHONPATH": headrace.__path__[0].rpartition("/")[0]}
