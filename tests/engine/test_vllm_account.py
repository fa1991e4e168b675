"""What a vLLM server says of itself, as an operator is told."""

import json

import pytest

from account_bodies import VLLM_METRICS as METRICS
from account_bodies import VLLM_SETTINGS as SETTINGS
from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.remark import Remark
from headrace.engine.accounts.vllm import capacity, checkpoint_of, checkpoint_remarks, is_it, remarks

AWQ = "AutoAWQConfig(quant_type=uint4, group_size=128, zero_point=True, modules_to_not_convert=['lm_head'])"
NF4 = (
    "BitsAndBytesConfig(load_in_8bit=False, load_in_4bit=True, bnb_4bit_compute_dtype=bfloat16, "
    "bnb_4bit_quant_storage=uint8, bnb_4bit_quant_type=nf4, llm_int8_skip_modules=[])"
)
"""These two as vLLM 0.32 and its plugin for bitsandbytes 0.0.3 show them."""


def said(metrics: str = METRICS, settings: object = SETTINGS, version: bytes = b'{"version":"0.32.0"}') -> list[Remark]:
    info = json.dumps({"vllm_config": settings}).encode()
    return list(remarks([metrics.encode(), version, info]))


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
        "weights: torch.bfloat16, quantization awq",
        "chunked prefill: at most 2048 tokens a step",
        "CUDA graphs: for batches of up to 512 tokens",
        "at most 256 answers at once",
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
        (
            "scheduler_config",
            {"policy": "fcfs"},
            "first come, first served: offline work waits in line with people (--scheduling-policy priority)",
        ),
    ],
)
def test_a_recipe_that_a_server_runs_with_is_told(part: str, settings: dict[str, object], told: str) -> None:
    assert told not in [remark.text for remark in said()]
    found = said(settings={**SETTINGS, part: settings})
    assert told in [remark.text for remark in found if remark.level == "ok"]


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (None, "weights: torch.bfloat16, quantization awq"),
        (AWQ, "weights: torch.bfloat16, quantization awq (uint4, groups of 128)"),
        (NF4, "weights: torch.bfloat16, quantization awq (nf4)"),
        (NF4.replace("load_in_4bit=True", "load_in_4bit=False"), "weights: torch.bfloat16, quantization awq"),
        ("<vllm.CompressedTensorsConfig object at 0x7f78d1bfda10>", "weights: torch.bfloat16, quantization awq"),
    ],
)
def test_what_is_behind_a_quantizations_name_is_told_if_it_shows(shown: str | None, told: str) -> None:
    (found,) = [remark for remark in said(settings={**SETTINGS, "quant_config": shown}) if "weights" in remark.text]
    assert found == Remark("ok", told)


@pytest.mark.parametrize(("experts", "noted"), [(False, True), (True, False), (None, False)])
def test_quantizing_the_experts_of_a_model_that_has_none_is_noted(experts: bool | None, noted: bool) -> None:
    """vLLM 0.32 takes it for a model like the one of these tests, and leaves its weights as they are."""
    model = {**SETTINGS["model_config"], "quantization": "int8_per_channel_weight_only"}
    found = notes(said(settings={**SETTINGS, "model_config": model, "parallel_config": {"is_moe_model": experts}}))
    assert [text.startswith("int8_per_channel_weight_only quantizes experts only") for text in found] == [True] * noted


@pytest.mark.parametrize(
    ("ranks", "slots"), [({}, 256), ({"data_parallel_size": 4, "data_parallel_size_local": 2}, 1024)]
)
def test_the_engine_takes_as_many_answers_at_once_as_an_operator_is_told(ranks: dict[str, object], slots: int) -> None:
    settings = {**SETTINGS, "parallel_config": ranks}
    assert capacity({"vllm_config": settings}) == Capacity(slots=slots)
    assert Remark("ok", f"at most {slots} answers at once") in said(settings=settings)


def checkpoint(**how: object) -> list[Remark]:
    return list(checkpoint_remarks(json.dumps({"model_type": "m", "quantization_config": how}).encode()))


def test_a_checkpoint_tells_whether_it_was_quantized_twice() -> None:
    """As transformers 5 saves it."""
    nf4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    (twice,) = checkpoint(**nf4, bnb_4bit_use_double_quant=True)
    (once,) = checkpoint(**nf4, bnb_4bit_use_double_quant=False)
    assert twice.text.startswith("the checkpoint: NF4 with double quantization")
    assert once.text == "the checkpoint: NF4 without double quantization"
    assert checkpoint(quant_method="bitsandbytes", load_in_8bit=True) == []
    assert checkpoint(quant_method="awq", bits=4) == []
    assert list(checkpoint_remarks(b"no JSON")) == []


def test_a_checkpoint_tells_in_how_many_bits_its_weights_and_activations_are() -> None:
    weights = {"num_bits": 8, "type": "int"}
    both = {"group_0": {"weights": weights, "input_activations": {"num_bits": 8, "type": "float"}}}
    only = {"group_0": {"weights": {**weights, "num_bits": 4}, "input_activations": None}}
    found = [checkpoint(quant_method="compressed-tensors", config_groups=groups) for groups in (both, only)]
    assert found == [
        [Remark("ok", "the checkpoint: weights of 8 bits (int), activations of 8 bits (float)")],
        [Remark("ok", "the checkpoint: weights of 4 bits (int)")],
    ]


@pytest.mark.parametrize("settings", [None, [], {"model_config": {"model": 7}}, {"model_config": {"model": ""}}])
def test_a_checkpoint_is_looked_for_only_where_one_is_named(settings: object) -> None:
    named = json.dumps({"vllm_config": {"model_config": {"model": "org/m"}}}).encode()
    assert checkpoint_of(named) == "org/m"
    assert checkpoint_of(json.dumps({"vllm_config": settings}).encode()) is None


@pytest.mark.parametrize(("part", "noted"), [("0.8", False), ("0.82", False), ("0.83", True), ("0.92", True)])
def test_less_than_a_fifth_of_a_gpus_memory_left_is_noted(part: str, noted: bool) -> None:
    """0.92 is what vLLM takes by itself."""
    found = notes(said(METRICS.replace('gpu_memory_utilization="0.8"', f'gpu_memory_utilization="{part}"')))
    assert [("--gpu-memory-utilization 0.8" in text) for text in found] == [True] * noted


def test_a_cache_whose_size_was_asked_for_says_nothing_about_head_room() -> None:
    page = METRICS.replace('gpu_memory_utilization="0.8"', 'gpu_memory_utilization="0.92",kv_cache_memory_bytes="2e9"')
    found = said(page)
    assert notes(found) == []
    assert "KV cache: 2.0 GB, as was asked for" in [remark.text for remark in found]
    assert not any("head-room" in remark.text for remark in found)


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
    assert is_it(METRICS.encode())
    assert not is_it(b"llamacpp:requests_processing 1\n")
    assert not is_it(b'{"detail":"Not Found"}')
