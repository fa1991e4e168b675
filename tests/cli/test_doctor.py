import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from client_server import Talker, serving
from fake_upstream import CUT, Answer, Asked, FakeUpstream, delta, json_answer, sse
from harness import run_async
from headrace.cli.doctor import judge, model_servers, server, settings


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


# Model servers


def serving_model(name: str) -> Callable[[Asked], Answer]:
    """A server that lists one model and answers for it alone."""

    def choose(asked: Asked) -> Answer:
        if asked.path.endswith("/models"):
            return json_answer({"data": [{"id": name, "owned_by": "vllm"}]})
        if not asked.path.startswith("/v1/"):
            return json_answer({"detail": "Not Found"}, status=404)
        if asked.body["model"] != name:
            return json_answer({"error": {"message": "no such model"}}, status=404)
        return Answer([sse(delta(content="Hi"), delta("length"), "[DONE]")])

    return choose


def asked_of(*urls: str, **more: str) -> argparse.Namespace:
    return options(**{"engine.url": ",".join(urls), "engine.model": "large", **more})


def embedding_model(asked: Asked) -> Answer:
    """A server that was started to make embeddings, and nothing else."""
    if asked.path.endswith("/models"):
        return json_answer({"data": [{"id": "large", "owned_by": "vllm"}]})
    if asked.path.endswith("/embeddings"):
        return json_answer({"data": [{"index": 0, "embedding": [0.5] * 1024}]})
    return json_answer({"detail": "Not Found"}, status=404)


def test_a_server_for_embeddings_is_told_from_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with FakeUpstream(choose=embedding_model) as upstream:
            (finding,) = await model_servers(asked_of(upstream.url))
            assert finding.level == "note"
            assert "large makes embeddings of 1024 numbers." in finding.text
            assert "answers nothing: The model server says: Not Found" in finding.text

    run_async(scenario())


def test_each_model_server_says_a_token_and_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with FakeUpstream(choose=serving_model("large")) as a, FakeUpstream(choose=serving_model("small")) as b:
            first, second, third = await model_servers(asked_of(a.url, b.url, "http://127.0.0.1:9"))
            assert first.level == "ok"
            assert first.text.startswith(f"model server {a.url}: large answers, first token after ")
            assert "going on with a cut answer" in first.text
            assert (second.level, third.level) == ("bad", "bad")
            assert "no such model" in second.text
            assert second.text.endswith("It serves small.")
            assert "cannot be reached" in third.text
            assert [asked.path for asked in a.asked if "chat" in asked.path] == ["/v1/chat/completions"]

    run_async(scenario())


def test_a_vllm_server_tells_how_it_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = b'vllm:cache_config_info{cache_dtype="fp8",enable_prefix_caching="False",kv_cache_size_tokens="9"} 1.0\n'

    def choose(asked: Asked) -> Answer:
        if asked.path == "/metrics":
            return Answer([page], headers={"Content-Type": "text/plain"})
        return serving_model("large")(asked)

    async def scenario() -> None:
        async with FakeUpstream(choose=choose) as server:
            answers, *remarks = await model_servers(asked_of(server.url))
        assert answers.level == "ok"
        assert all(remark.text.startswith(f"model server {server.url}: ") for remark in remarks)
        assert [remark.level for remark in remarks if "prefix cache is off" in remark.text] == ["note"]
        assert any("KV cache: 9 tokens, type fp8" in remark.text for remark in remarks)

    run_async(scenario())


def test_a_server_that_loads_and_dies_at_its_first_request_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def choose(asked: Asked) -> Answer:
        healthy = asked.path.endswith("/models")
        return json_answer({"data": [{"id": "large"}]}) if healthy else Answer([CUT])

    async def scenario() -> None:
        async with FakeUpstream(choose=choose) as dying:
            (found,) = await model_servers(asked_of(dying.url))
            assert (found.level, "large answers" in found.text) == ("bad", False)

    run_async(scenario())


def test_the_fallback_is_tried_too_and_keys_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with FakeUpstream(choose=serving_model("small")) as spare:
            fallback = {"engine.fallback_url": spare.url, "engine.fallback_model": "small"}
            away, found = await model_servers(asked_of("http://me:secret@127.0.0.1:9", **fallback))
            assert away.level == "bad"
            assert "secret" not in away.text
            assert (found.level, found.text[: len(f"fallback {spare.url}")]) == ("ok", f"fallback {spare.url}")

    run_async(scenario())


def test_without_a_model_server_there_is_nothing_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_async(model_servers(options())) == []


def test_a_model_server_s_address_that_is_none_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = run_async(model_servers(asked_of("gpu1:8000")))
    assert found.level == "bad"
    assert "gpu1:8000" in found.text
