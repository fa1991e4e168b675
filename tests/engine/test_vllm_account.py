"""What a vLLM server says of itself, as an operator is told."""

import json

import pytest

from headrace.engine.vllm.account import Remark, is_vllm, remarks

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.8",kv_cache_size_tokens="262144"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 400.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 300.0
"""
SETTINGS: dict[str, dict[str, object]] = {
    "model_config": {"dtype": "torch.bfloat16", "quantization": "awq_marlin", "enforce_eager": False},
    "scheduler_config": {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048, "policy": "priority"},
    "compilation_config": {"cudagraph_capture_sizes": [1, 2, 512, 4]},
    "parallel_config": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    "device_config": {"device": "cuda"},
}


def said(metrics: str = METRICS, settings: object = SETTINGS, version: bytes = b'{"version":"0.32.0"}') -> list[Remark]:
    info = json.dumps({"vllm_config": settings}).encode()
    return list(remarks(version=version, metrics=metrics.encode(), info=info))


def notes(found: list[Remark]) -> list[str]:
    return [remark.text for remark in found if remark.level == "note"]


def test_a_server_that_is_set_up_well_is_described_and_not_criticised() -> None:
    found = said()
    assert notes(found) == []
    assert [remark.text for remark in found] == [
        "vLLM 0.32.0, 7 requests running",
        "KV cache: 262144 tokens, type fp8",
        "prefix cache: 75% of 400 prompt tokens were in it",
        "head-room: it takes 80% of the memory of a GPU",
        "weights: torch.bfloat16, quantization awq_marlin",
        "chunked prefill: at most 2048 tokens a step",
        "CUDA graphs: for batches of up to 512 tokens",
        "tensor parallel over 2 devices, by mp",
    ]


@pytest.mark.parametrize(
    ("part", "settings", "told"),
    [
        ("cache_config", {"sliding_window": 4096}, "sliding window: all layers see 4096 tokens back"),
        (
            "parallel_config",
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"},
            "pipeline of 2 stages, by ray",
        ),
        (
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 4},
            "speculative decoding: ngram, 4 tokens ahead",
        ),
    ],
)
def test_a_recipe_that_a_server_runs_with_is_told(part: str, settings: dict[str, object], told: str) -> None:
    assert told not in [remark.text for remark in said()]
    found = said(settings={**SETTINGS, part: settings})
    assert told in [remark.text for remark in found if remark.level == "ok"]


@pytest.mark.parametrize(
    ("there", "instead", "note"),
    [
        ('enable_prefix_caching="True"', 'enable_prefix_caching="False"', "prefix cache is off"),
        ('gpu_memory_utilization="0.8"', 'gpu_memory_utilization="0.95"', "--gpu-memory-utilization 0.8"),
        ("# HELP", "vllm:num_preemptions_total{} 12.0\n# HELP", "12 answers were interrupted"),
        (
            "# HELP",
            "vllm:spec_decode_num_draft_tokens_total{} 50\nvllm:spec_decode_num_accepted_tokens_total{} 5\n# HELP",
            "10% of 50 drafted tokens were right",
        ),
    ],
)
def test_a_metric_that_tells_of_trouble_is_noted(there: str, instead: str, note: str) -> None:
    assert there in METRICS
    (found,) = notes(said(METRICS.replace(there, instead)))
    assert note in found


@pytest.mark.parametrize(
    ("part", "change", "note"),
    [
        ("scheduler_config", {"enable_chunked_prefill": False}, "Chunked prefill is off"),
        ("model_config", {"enforce_eager": True}, "CUDA graphs"),
    ],
)
def test_a_setting_that_costs_is_noted(part: str, change: dict[str, object], note: str) -> None:
    (found,) = notes(said(settings={**SETTINGS, part: {**SETTINGS[part], **change}}))
    assert note in found


def test_what_is_about_a_gpu_is_not_said_where_there_is_none() -> None:
    settings = {**SETTINGS, "model_config": {"enforce_eager": True}, "device_config": {"device": "cpu"}}
    full = METRICS.replace('gpu_memory_utilization="0.8"', 'gpu_memory_utilization="0.95"')
    assert notes(said(full, settings)) == []
    assert not [remark for remark in said(settings=settings) if "GPU" in remark.text or "CUDA" in remark.text]


@pytest.mark.parametrize("nothing", [None, [], "no", {"model_config": 7}])
def test_settings_that_are_not_shown_or_not_understood_are_left_out(nothing: object) -> None:
    assert notes(said(settings=nothing, version=b"<html>")) == []
    assert "of an unknown version" in said(settings=nothing, version=b"<html>")[0].text


def test_another_servers_metrics_are_not_taken_for_vllms() -> None:
    assert is_vllm(METRICS.encode())
    assert not is_vllm(b"llamacpp:requests_processing 1\n")
    assert not is_vllm(b'{"detail":"Not Found"}')
