import argparse
import asyncio
from pathlib import Path

import pytest

from client_server import Talker, serving
from harness import run_async
from headrace.cli.doctor import judge, server, settings


def options(url: str | None = None, **extra: str) -> argparse.Namespace:
    return argparse.Namespace(url=url, api_key=None, config=None, **extra)


class SlowTalker(Talker):
    """Takes half a second to say something."""

    async def emit(self, context: object, event: object) -> None:
        await super().emit(context, event)  # type: ignore[arg-type]
        await asyncio.sleep(0.06)


def test_a_stream_that_comes_as_it_was_written_is_well() -> None:
    assert judge([(1000, 5.0), (1500, 5.4), (2000, 6.0)]).level == "ok"


def test_a_stream_that_comes_in_one_piece_is_buffered() -> None:
    found = judge([(1000, 7.0), (1500, 7.001), (2000, 7.002)])
    assert found.level == "bad"
    assert "buffers" in found.text


def test_a_run_that_was_too_fast_proves_nothing() -> None:
    assert judge([(1000, 5.0), (1010, 5.01)]).level == "note"


def test_a_server_that_streams_is_found_well() -> None:
    async def scenario() -> None:
        async with serving(SlowTalker()) as running:
            findings = await server(options(running.url))
            assert [finding.level for finding in findings] == ["ok"] * 4, findings

    run_async(scenario())


def test_a_server_that_is_named_and_not_there_is_bad() -> None:
    (finding,) = run_async(server(options("http://127.0.0.1:9")))
    assert finding.level == "bad"


def test_a_place_for_the_log_that_is_there_is_found_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    findings = list(settings(options(**{"log.path": str(tmp_path / "runs")})))
    assert str(tmp_path / "runs") in findings[0].text


def test_a_wrong_configuration_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace.toml").write_text("[server]\nprot = 1")
    monkeypatch.chdir(tmp_path)
    (finding,) = settings(options())
    assert finding.level == "bad"
    assert "server.port" in finding.text


def test_the_redis_of_a_shared_log_is_looked_at(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    findings = list(settings(options(**{"log.url": redis_url})))
    assert [finding.level for finding in findings] == ["ok", "bad"]
    assert "appendonly" in findings[1].text


@pytest.mark.parametrize("url", ["redis://:secret@127.0.0.1:9", "redis://app:sec:ret/secret@localhost"])
def test_a_redis_that_is_not_there_is_bad_and_its_password_not_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (finding,) = settings(options(**{"log.url": url}))
    assert finding.level == "bad"
    assert "secret" not in finding.text
