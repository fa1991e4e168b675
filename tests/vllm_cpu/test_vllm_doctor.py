"""What the doctor says of real vLLM servers that run with the recipes of docs/vllm.md, several of them together."""

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import run_async
from headrace.cli.doctor import model_servers
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import ModelRequest
from headrace.engine.trial import Trial, put_on_trial
from headrace.testing.engine_contract import collect
from nf4_checkpoint import quantize_twice
from tiny_model import HIDDEN, learning_text, make_tiny_model
from vllm_server import VllmServer, vllm_server

BFLOAT16 = ("--dtype", "bfloat16")


def engine_of(server: VllmServer) -> OpenAIEngine:
    return OpenAIEngine(server.url, model="tiny", capabilities=None)


def trial_of(server: VllmServer) -> Trial:
    return run_async(put_on_trial(engine_of(server)), deadline=120)


def told_by(trial: Trial, level: str) -> list[str]:
    return [remark.text for remark in trial.remarks if remark.level == level]


def test_nine_recipes_in_one_server_are_seen_by_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWQ, sliding windows, FP8 for the KV cache, n-grams, a budget for prompts, few slots, no prefix cache, no
    priorities, two devices."""
    monkeypatch.chdir(tmp_path)
    model = make_tiny_model(tmp_path / "tiny", text=learning_text(), quantized="awq", window=256)
    ngrams = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":1}'
    options = (
        *("--kv-cache-dtype", "fp8", "--speculative-config", ngrams, "--max-num-batched-tokens", "512"),
        *("--max-num-seqs", "4", "--no-enable-prefix-caching", "--scheduling-policy", "fcfs"),
        *("--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.95"),
    )
    cores = sorted(os.sched_getaffinity(0))
    two = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}  # or it wants a NUMA node for each
    with vllm_server(model, tmp_path / "log", *BFLOAT16, *options, environment=two) as server:
        run_async(say_it_again(server), deadline=120)
        wanted = argparse.Namespace(**{"url": None, "config": None, "engine.url": server.url, "engine.model": "tiny"})
        first, *findings = run_async(model_servers(wanted), deadline=120)
    assert first.level == "ok", first
    told = [finding.text.removeprefix(f"model server {server.url}: ") for finding in findings]
    for text in (
        "weights: torch.bfloat16, quantization awq (uint4, groups of 128)",
        r"KV cache: \d+ tokens, type fp8",
        "sliding window: all layers see 256 tokens back",
        "speculative decoding: ngram, 4 tokens ahead",
        r"speculative decoding: \d+% of \d+ drafted tokens were right",
        "chunked prefill: at most 512 tokens a step",
        "at most 4 answers at once",
        r"first come, first served: .*",
        "tensor parallel over 2 devices, by mp",
    ):
        pattern = text if "\\d" in text or ".*" in text else re.escape(text)
        assert any(re.fullmatch(pattern, one) for one in told), (text, told)
    notes = [finding.text for finding in findings if finding.level == "note" and "drafted" not in finding.text]
    assert len(notes) == 1, notes
    assert "The prefix cache is off" in notes[0]
    assert not any("GPU" in one for one in told), "there is none"


async def say_it_again(server: VllmServer) -> None:
    """Its prompt says what it has to say, so that n-grams are found."""
    said = "alpha beta gamma delta epsilon"
    request = ModelRequest(prompt=said * 4, extra={"structured_outputs": {"choice": [said]}}, max_tokens=60)
    async with engine_of(server) as engine:
        await collect(engine, request)


@pytest.fixture(scope="module")
def servers(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, VllmServer]]:
    """By what is quantized in them. They start side by side."""
    folder, text = tmp_path_factory.mktemp("doctor"), learning_text()
    twice = make_tiny_model(folder / "nf4", text=text)
    quantize_twice(twice)
    recipes: dict[str, tuple[Path, tuple[str, ...]]] = {
        "int8": (
            make_tiny_model(folder / "int8", text=text, quantized="int8"),
            ("--kv-cache-dtype", "int8_per_token_head", "--no-enable-chunked-prefill"),
        ),
        "fp8": (tiny, ("--quantization", "fp8_per_channel")),
        "nf4": (twice, ()),
        "gptq": (make_tiny_model(folder / "gptq", text=text, quantized="gptq"), ("--runner", "pooling")),
    }
    with ExitStack() as stack:
        starting = {
            name: stack.enter_context(vllm_server(model, folder / f"{name}.log", *BFLOAT16, *options, wait=False))
            for name, (model, options) in recipes.items()
        }
        for server in starting.values():
            server.wait_until_up()
        yield starting


def test_eight_bits_for_weights_activations_and_the_cache_are_seen(servers: dict[str, VllmServer]) -> None:
    trial = trial_of(servers["int8"])
    assert trial.error is None
    told = told_by(trial, "ok")
    assert "weights: torch.bfloat16, quantization compressed-tensors" in told
    assert "the checkpoint: weights of 8 bits (int), activations of 8 bits (int)" in told
    assert any(re.fullmatch(r"KV cache: \d+ tokens, type int8_per_token_head", text) for text in told)
    assert told_by(trial, "note") == ["Chunked prefill is off: a long prompt holds up everybody's tokens."]


def test_weights_that_are_quantized_while_they_load_are_seen(servers: dict[str, VllmServer]) -> None:
    trial = trial_of(servers["fp8"])
    assert trial.error is None
    assert "weights: torch.bfloat16, quantization fp8_per_channel" in told_by(trial, "ok")
    assert told_by(trial, "note") == []


def test_four_bits_quantized_twice_are_seen(servers: dict[str, VllmServer]) -> None:
    trial = trial_of(servers["nf4"])
    assert trial.error is None
    told = told_by(trial, "ok")
    assert "weights: torch.bfloat16, quantization bitsandbytes (nf4)" in told
    undone = "of which vLLM undoes the second step while it loads"
    assert f"the checkpoint: NF4 with double quantization, {undone}" in told


def test_a_server_for_embeddings_embeds_and_is_seen_with_its_quantization(servers: dict[str, VllmServer]) -> None:
    server = servers["gptq"]

    async def embed() -> list[list[float]]:
        async with engine_of(server) as engine:
            return await engine.embed(["a licence", "quite another text", "a licence"])

    first, other, again = run_async(embed(), deadline=120)
    trial = trial_of(server)
    assert len(first) == HIDDEN
    assert first == pytest.approx(again, abs=0.05)
    assert first != pytest.approx(other, abs=0.05)
    assert trial.vector == HIDDEN
    assert trial.text.startswith(f"tiny makes embeddings of {HIDDEN} numbers.")
    assert "weights: torch.bfloat16, quantization auto_gptq (uint4b8, groups of 128)" in told_by(trial, "ok")
