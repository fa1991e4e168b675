"""What other model servers say of themselves, as an operator is told: bodies made again from their documents and
source, and llama.cpp's own server."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from account_bodies import SGLANG, STEP, TGI, TRITON, VLLM_METRICS, VLLM_SETTINGS
from fake_upstream import Answer, Asked, FakeUpstream, delta, json_answer, sse
from harness import run_async
from headrace.config import EngineConfig
from headrace.engine import models, presets
from headrace.engine.accounts.table import KINDS
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.presets import CHAT, Preset
from headrace.engine.trial import Trial, put_on_trial
from headrace.engines import remote_engines

PLAIN = {"Content-Type": "text/plain"}


def serving(**bodies: object) -> Callable[[Asked], Answer]:
    """A server that answers, and has these bodies besides, at paths with `_` for `/`."""

    def choose(asked: Asked) -> Answer:
        if asked.path.endswith("/v1/chat/completions"):
            return Answer([sse(delta(content="Hi"), delta("length"), "[DONE]")])
        body = bodies.get(asked.path.partition("?")[0].lstrip("/").replace("/", "_").replace("-", "_"))
        if body is None:
            return json_answer({"detail": "Not Found"}, status=404)
        return Answer([body], headers=PLAIN) if isinstance(body, bytes) else json_answer(body)

    return choose


def trial_of(choose: Callable[[Asked], Answer], *, at: str = "") -> tuple[Trial, list[str]]:
    """The trial of such a server, and which paths it was asked for. `at` is its API's path where it says one."""

    async def scenario() -> tuple[Trial, list[str]]:
        async with FakeUpstream(choose=choose) as up:
            trial = await put_on_trial(OpenAIEngine(up.url + at, model="m", capabilities=None))
            return trial, [asked.path for asked in up.asked]

    return run_async(scenario())


def told(**bodies: object) -> dict[str, list[str]]:
    trial, _ = trial_of(serving(**bodies))
    assert trial.error is None
    found: dict[str, list[str]] = {"ok": [], "note": []}
    for remark in trial.remarks:
        found[remark.level].append(remark.text)
    return found


@pytest.mark.parametrize("path", ["server_info", "get_server_info"])
def test_sglang_tells_what_it_was_started_with_and_what_became_of_it(path: str) -> None:
    assert told(**{path: SGLANG}) == {
        "ok": [
            "SGLang 0.5.5",
            "weights: auto, quantization awq_marlin",
            "KV cache: 131072 tokens, type fp8_e4m3",
            "at most 128 answers at once",
            "chunked prefill: at most 8192 tokens a step",
            "head-room: it takes 80% of the memory of a GPU",
            "speculative decoding: EAGLE3, 4 tokens ahead",
            "tensor parallel over 2 devices",
        ],
        "note": [],
    }


def test_what_costs_in_sglang_is_noted_and_what_it_does_not_have_is_not_told() -> None:
    bare: dict[str, object] = {"quantization": None, "speculative_algorithm": None, "tp_size": 1, "internal_states": []}
    bad = {"disable_radix_cache": True, "chunked_prefill_size": -1, "disable_cuda_graph": True}
    found = told(server_info={**SGLANG, **bare, **bad, "mem_fraction_static": 0.88})
    assert found["ok"] == [
        "SGLang 0.5.5",
        "weights: auto, quantization none",
        "KV cache: 131072 tokens, type fp8_e4m3",
    ]
    assert [text.split(":")[0] for text in found["note"]] == [
        "The prefix cache is off",
        "Chunked prefill is off",
        "CUDA graphs are off",
        "It takes 88% of the memory of a GPU. --mem-fraction-static 0.8 leaves room for peaks.",
    ]


def test_tgi_tells_its_context_and_when_it_refuses() -> None:
    now = told(info=TGI)
    older = told(info={**TGI, "version": "1.4.0", "model_dtype": "torch.float16", "max_batch_total_tokens": 32000})
    shared = ["context: 2048 tokens, 1024 of them for the prompt", "at most 128 requests at once, more are refused"]
    assert now == {"ok": ["TGI 3.3.6", *shared], "note": []}
    tokens = "KV cache: 32000 tokens for all answers together"
    assert older == {"ok": ["TGI 1.4.0", "weights: torch.float16", *shared, tokens], "note": []}


def test_the_info_of_another_server_is_not_taken_for_tgis() -> None:
    """Such as of its sibling for embeddings."""
    assert told(info={"model_id": "m", "max_concurrent_requests": 512, "max_input_length": 512}) == {
        "ok": [],
        "note": [],
    }


def test_tensorrt_llm_tells_its_cache_in_the_statistics_of_its_steps() -> None:
    assert told(metrics=[{"iter": 153}, STEP], version={"version": "1.2.0"}) == {
        "ok": [
            "TensorRT-LLM 1.2.0",
            "KV cache: 3240192 tokens",
            "prefix cache: 75% of 40 blocks were in it",
            "at most 2048 answers at once",
            "it takes 76.7 GB of the memory of a GPU",
        ],
        "note": [],
    }


def test_tensorrt_llm_without_statistics_says_what_it_takes_to_see_them() -> None:
    version, hint = told(metrics=[], version={"version": "1.2.0"})["ok"]
    assert version == "TensorRT-LLM 1.2.0"
    assert "enable_iter_perf_stats" in hint


def test_triton_tells_the_memory_that_is_used_and_what_its_back_end_counts() -> None:
    assert told(metrics=TRITON) == {
        "ok": [
            "Triton, 41 requests answered",
            "KV cache: 399296 tokens",
            "at most 512 answers at once",
            "head-room: it takes 75% of the memory of a GPU",
        ],
        "note": [],
    }
    (note,) = told(metrics=TRITON.replace(b" 60000000000", b" 76000000000"))["note"]
    assert note.startswith("It takes 95% of the memory of a GPU.")


@pytest.mark.parametrize(
    "bodies",
    [
        {"server_info": {"mem_fraction_static": "much", "internal_states": 7, "chunked_prefill_size": None}},
        {"info": {"max_total_tokens": None, "max_best_of": None}},
        {"metrics": [7, None]},
        {"metrics": [{"kvCacheStats": None}]},
        {"metrics": b'nv_inference_request_success{model="m"} ?\nnv_gpu_memory_used_bytes{gpu_uuid="a"} 1\n'},
        {"props": {"default_generation_settings": 7}, "v1_models": {"data": 7}, "slots": [7]},
    ],
)
def test_what_cannot_be_understood_is_left_out(bodies: dict[str, object]) -> None:
    assert told(**bodies)["note"] == []


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "org/" + "a" * 300])
def test_weights_that_no_file_can_be_called_by_are_nowhere(name: str) -> None:
    info = {"vllm_config": {**VLLM_SETTINGS, "model_config": {"model": name, "dtype": "bfloat16"}}}
    found = told(metrics=VLLM_METRICS.encode(), server_info=info)
    assert "weights: bfloat16, quantization none" in found["ok"]
    assert not [text for text in found["ok"] if "checkpoint" in text]


def test_a_server_is_asked_for_its_settings_beside_its_api_and_nowhere_else() -> None:
    """Another server may be at the root of the same host."""
    stranger, asked = trial_of(serving(gpu1_server_info=SGLANG, server_info=TGI, info=TGI), at="/gpu1/v1")
    assert stranger.remarks[0].text == "SGLang 0.5.5"
    assert {"/gpu1/metrics", "/gpu1/props", "/gpu1/server_info"} <= set(asked)
    assert not [path for path in asked if not path.startswith("/gpu1/")]


class Service(Preset, frozen=True, kw_only=True):
    """One that is on this machine, so that it can be seen what it is asked."""

    @property
    def hosted(self) -> bool:
        return True


SAID_TO_A_SERVICE = {"/v1/models", "/v1/chat/completions"}


@pytest.mark.parametrize("named", [True, False], ids=["by its preset", "by its address"])
def test_a_service_is_asked_for_no_settings(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    async def scenario() -> set[str]:
        async with FakeUpstream(choose=serving()) as up:
            service = Service(name="openai", url=f"{up.url}/v1", capabilities=CHAT)
            monkeypatch.setitem(presets.PRESETS, "openai", service)
            wanted = EngineConfig(preset="openai" if named else None, url=None if named else up.url, model="m")
            (engine,) = remote_engines(wanted).values()
            trial = await put_on_trial(engine)
            assert (trial.error, trial.remarks) == (None, ())
            return {asked.path for asked in up.asked}

    assert run_async(scenario()) == SAID_TO_A_SERVICE


def test_a_stranger_is_asked_for_all_that_it_may_have_to_say() -> None:
    stranger, asked = trial_of(serving())
    assert stranger.remarks == ()
    paths = {path.partition("?")[0] for kind in KINDS for path in kind.paths[:1]}
    assert set(asked) == SAID_TO_A_SERVICE | paths


@pytest.mark.parametrize("in_the_hub", [False, True])
def test_the_checkpoint_of_a_vllm_is_read_where_this_machine_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_hub: bool
) -> None:
    """`/server_info` names the weights; that they were quantized twice only their `config.json` says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    cached = ".cache/huggingface/hub/models--org--m/snapshots/1f2e"
    folder = tmp_path / (cached if in_the_hub else "weights")
    folder.mkdir(parents=True)
    page = b'vllm:cache_config_info{cache_dtype="auto",enable_prefix_caching="True"} 1.0\n'
    model = {"model": "org/m" if in_the_hub else str(folder), "quantization": "bitsandbytes"}
    info = {"vllm_config": {"model_config": model, "device_config": {"device": "cpu"}}}
    assert not [text for text in told(metrics=page, server_info=info)["ok"] if "checkpoint" in text]
    how = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = {"quantization_config": {**how, "bnb_4bit_use_double_quant": True}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (text,) = [text for text in told(metrics=page, server_info=info)["ok"] if "checkpoint" in text]
    assert "NF4 with double quantization" in text


@pytest.mark.model
def test_llama_cpp_s_own_server_tells_its_weights_its_slots_and_that_it_guesses_ahead() -> None:
    async def scenario(*, ngram: bool) -> list[str]:
        weights = models.install("smollm2")
        async with LlamaCppEngine(weights, slots=2, context=512, ngram=ngram) as engine:
            process = engine._process
            assert process is not None
            server = OpenAIEngine(process.url, model="m", api_key=process.api_key, capabilities=None)
            trial = await put_on_trial(server)
        assert trial.error is None
        assert {remark.level for remark in trial.remarks} == {"ok"}
        return [remark.text for remark in trial.remarks]

    build, *found = run_async(scenario(ngram=True), deadline=120)
    assert build.startswith("llama.cpp b")
    assert found == ["weights: Q4_1, 5.7 bits each", "2 slots, each with 512 tokens of context", "speculative decoding"]
    assert run_async(scenario(ngram=False), deadline=120) == [build, *found[:-1]]


def test_a_key_that_a_server_shows_is_not_told() -> None:
    assert "sk-secret" not in json.dumps(told(server_info=SGLANG))
