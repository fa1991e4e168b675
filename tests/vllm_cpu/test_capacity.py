"""What a real vLLM says of how much it holds, and of how long an answer took it."""

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from harness import run_async
from headrace.engine.openai import acquaintance
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Chunk, Finish, ModelRequest
from headrace.engine.presets import VLLM
from headrace.engine.remote import remote_engine
from headrace.messages import Message, Timing
from headrace.testing.engine_contract import collect
from vllm_server import CONTEXT, SLOTS, VllmServer, vllm_server

ASK = ModelRequest(
    messages=(Message(role="user", content="Answer."),), max_tokens=8, extra={"ignore_eos": True}, temperature=0.0
)
RAW = msgspec.structs.replace(ASK, messages=(), prompt="Once upon a time")


def engine_of(server: VllmServer, *, preset: str | None = None, model: str = "tiny") -> OpenAIEngine:
    engine = remote_engine(server.url, server=preset, model=model)
    assert isinstance(engine, OpenAIEngine)
    return engine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server has not said it is asked again before every answer."""
    monkeypatch.setattr(acquaintance, "AGAIN_S", 0.0)


# With VLLM_SERVER_DEV_MODE=1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("preset", ["vllm", None], ids=["named", "recognised"])
@pytest.mark.parametrize("model", ["tiny", "pirate"])
def test_it_says_its_context_at_once_and_its_slots_before_long(
    server: VllmServer, preset: str | None, model: str
) -> None:
    """The first time it is asked for its settings it looks at its whole machine, which takes it seconds."""

    async def scenario() -> None:
        async with engine_of(server, preset=preset, model=model) as engine:
            assert engine.capabilities.context_tokens == CONTEXT
            assert engine.capabilities.json_schema == VLLM.capabilities.json_schema
            while engine.capabilities.slots is None:
                await collect(engine, ASK)
            assert engine.capabilities.slots == SLOTS

    run_async(scenario(), deadline=120)


# As it is in public


@pytest.fixture(scope="module")
def public(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """It gives one answer after the other, measures each, and tells nobody its settings."""
    options = ("--max-num-seqs", "1", "--enable-per-request-metrics")
    log = tmp_path_factory.mktemp("public") / "log"
    with vllm_server(tiny, log, *options, environment={"VLLM_SERVER_DEV_MODE": "0"}) as running:
        yield running


@pytest.mark.usefixtures("impatient")
def test_without_its_development_mode_its_slots_are_unknown_and_it_is_asked_once(public: VllmServer) -> None:
    asked = lists_read(public)

    async def scenario() -> None:
        async with engine_of(public) as engine:
            for _ in range(2):
                await collect(engine, ASK)
                assert (engine.capabilities.context_tokens, engine.capabilities.slots) == (CONTEXT, None)

    run_async(scenario(), deadline=120)
    assert lists_read(public) == asked + 1


def lists_read(server: VllmServer) -> int:
    """How often its list of models was asked for."""
    with urllib.request.urlopen(f"{server.root}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = re.search(r'^http_requests_total\{handler="/v1/models",.*\} (\S+)$', page, re.MULTILINE)
    return int(float(found[1])) if found else 0


class Clock:
    """What its own metrics say all answers took until now, in milliseconds."""

    def __init__(self, server: VllmServer) -> None:
        self.queued, self.prefill, self.decode = (
            server.metric(f"request_{part}_time_seconds_sum") * 1000 for part in ("queue", "prefill", "decode")
        )


@pytest.mark.parametrize("request_", [ASK, RAW], ids=["chat", "raw"])
def test_what_reading_and_speaking_took_is_what_vllm_has_measured(public: VllmServer, request_: ModelRequest) -> None:
    async def scenario() -> Timing:
        async with engine_of(public) as engine:
            return timing_of(await collect(engine, request_))

    before = Clock(public)
    timing = run_async(scenario(), deadline=120)
    after = Clock(public)
    assert timing.prefill_ms == pytest.approx(after.prefill - before.prefill, abs=0.01)
    assert timing.decode_ms == pytest.approx(after.decode - before.decode, abs=0.01)
    assert timing.first_token_ms is not None
    assert timing.queued_ms == pytest.approx(timing.first_token_ms - (timing.prefill_ms or 0))


def test_who_has_waited_in_vllm_s_own_line_is_told_so(public: VllmServer) -> None:
    """The one slot is taken until the other request is seen to wait."""
    long = msgspec.structs.replace(ASK, max_tokens=CONTEXT - 100)

    async def scenario() -> tuple[Timing, float]:
        async with engine_of(public) as engine:
            async with engine.stream(long) as chunks:
                await anext(chunks)
                before = Clock(public)
                waiting = asyncio.ensure_future(collect(engine, ASK))
                await public.until("num_requests_waiting", 1)
            timing = timing_of(await waiting)
        await public.until_idle()
        return timing, Clock(public).queued - before.queued

    timing, queued = run_async(scenario(), deadline=120)
    assert timing.queued_ms >= queued > 0


def timing_of(chunks: list[Chunk]) -> Timing:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1].timing
