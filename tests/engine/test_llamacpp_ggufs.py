"""The embedded engine runs GGUF files of any quantisation, and guesses ahead with a smaller model of the same words.

The files are made here from SmolLM2's weights by llama.cpp's own code. Its rows have 576 weights, and the K types come
in blocks of 256: so only the matrices with rows of 1,536 can be of those, and the rest is what llama.cpp's own tool
falls back to, or near it. The slowest types are those of every third or sixth layer only.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gguf_file import Tensor, Weights, as_types, read_weights, with_layers, write_bert, write_weights
from harness import run_async
from headrace.engine import models
from headrace.engine.gguf import read_header
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.llamacpp.memory import need
from headrace.engine.port import Finish, ModelRequest
from headrace.errors import ConfigError
from headrace.testing.engine_contract import collect, text_of

xllamacpp = pytest.importorskip("xllamacpp")
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        not hasattr(ctypes.CDLL(xllamacpp.xllamacpp.__file__), "ggml_quantize_chunk"),
        reason="this build of the library does not export what makes weights of another type",
    ),
]

LISTS = (
    "One, two, three, four,",
    "January, February, March,",
    "Monday, Tuesday, Wednesday,",
    "2, 4, 6, 8, 10,",
)
AGREED = 6  # tokens
MIB = 1 << 20


def _mix(long_rows: str, rest: str, *, every: int = 1, ends: str = "Q8_0") -> Callable[[Tensor], str]:
    """`ends` are the embeddings, which are the output too."""

    def kind_of(tensor: Tensor) -> str:
        if tensor.layer is None:
            return ends
        return long_rows if "ffn_down" in tensor.name and tensor.layer % every == 0 else rest

    return kind_of


NEARLY_FULL = {
    "BF16": _mix("BF16", "BF16", ends="BF16"),
    "Q8_0": _mix("Q8_0", "Q8_0"),
    "Q6_K": _mix("Q6_K", "Q8_0"),
}
FEWER_BITS = {
    "Q5_K_M": _mix("Q5_K", "Q5_1", every=3),
    "Q4_K_M": _mix("Q4_K", "Q5_0", every=3),
    "Q4_0": _mix("Q4_0", "Q4_0"),
    "Q3_K_M": _mix("Q3_K", "Q4_0"),
    "Q2_K": _mix("Q2_K", "Q4_0", every=3),
    "IQ4_NL": _mix("IQ4_NL", "Q4_0", every=6),
}


@cache
def _in_full() -> Weights:
    return as_types(read_weights(models.install("smollm2")), lambda _: "F32")


@cache
def _said_in_16_bits(folder: Path) -> tuple[str, ...]:
    return _said(_made(folder, _mix("F16", "F16", ends="F16")), copied=False)


def _made(folder: Path, kind_of: Callable[[Tensor], str]) -> Path:
    path = folder / "model.gguf"
    write_weights(path, as_types(_in_full(), kind_of))
    return path


def _said(path: Path, *, copied: bool) -> tuple[str, ...]:
    """How each list goes on. Looks at the memory too, of which `copied` types may take more."""

    async def scenario() -> tuple[str, ...]:
        async with LlamaCppEngine(path, slots=1, context=256, kv="f16") as engine:
            said = []
            for start in LISTS:
                request = ModelRequest(prompt=start, max_tokens=AGREED, temperature=0.0)
                chunks = await collect(engine, request)
                assert isinstance(chunks[-1], Finish)
                assert (chunks[-1].reason, chunks[-1].usage.output_tokens) == ("length", AGREED)
                said.append(text_of(chunks))
            _require_foretold(path, engine.pid, copied=copied)
            return tuple(said)

    return run_async(scenario(), deadline=120)


def _require_foretold(path: Path, pid: int | None, *, copied: bool) -> None:
    """What the process holds is what its need was said to be. Some types llama.cpp lays out anew for the processor:
    then the file, which it read them from, is still counted as its own, though the system may take that back."""
    if sys.platform != "linux":
        return
    size = path.stat().st_size
    wanted = need(read_header(path), file_size=size, context=256, slots=1, kv="f16")
    total = wanted.weights + wanted.cache + wanted.working
    held = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) << 10
    assert 0.9 * total <= held <= 1.1 * total + size * copied, f"{held // MIB} MiB where {total // MIB} were foretold"


@pytest.mark.parametrize("kind", NEARLY_FULL)
def test_a_file_of_6_bits_or_more_says_what_16_bits_say(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert _said(_made(folder, NEARLY_FULL[kind]), copied=kind != "BF16") == _said_in_16_bits(folder)


@pytest.mark.parametrize("kind", FEWER_BITS)
def test_a_file_of_fewer_bits_loads_and_answers(kind: str, tmp_path: Path) -> None:
    assert all(answer.strip() for answer in _said(_made(tmp_path, FEWER_BITS[kind]), copied=True))


# A draft model

_LIST = "".join(f"item {number}: red, green, blue, {number * 7}\n" for number in range(8)) + "item 8:"
_TALE = "The little fox went into the forest and"


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 without a fifth of its layers: it often says the same."""
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    kept = {*range(6), *range(12, 30)}
    write_weights(path, with_layers(read_weights(models.install("smollm2")), kept))
    assert read_header(path).number("block_count", 0) == len(kept)
    return path


def test_a_smaller_draft_model_changes_nothing_that_is_said_and_is_right_now_and_then(draft: Path) -> None:
    async def answers(draft: Path | None) -> tuple[list[str], dict[str, Any]]:
        weights = models.install("smollm2")
        async with LlamaCppEngine(weights, slots=1, context=512, draft=draft) as engine:
            requests = [ModelRequest(prompt=prompt, max_tokens=24, temperature=0.0) for prompt in (_LIST, _TALE)]
            said = [text_of(await collect(engine, request)) for request in requests]
            return said, await _timings(engine, _TALE)

    alone, without = run_async(answers(None), deadline=120)
    guessed, timings = run_async(answers(draft), deadline=120)
    assert guessed == alone
    assert "draft_n" not in without
    assert 0 < timings["draft_n_accepted"] < timings["draft_n"], "some were right, and some were not"


def test_a_draft_model_of_another_vocabulary_is_refused_before_anything_starts(tmp_path: Path) -> None:
    log = tmp_path / "llamacpp.log"

    async def scenario() -> None:
        draft = write_bert(tmp_path / "bert.gguf")
        async with LlamaCppEngine(models.install("smollm2"), slots=1, context=256, draft=draft, log=log):
            raise AssertionError("it started")

    with pytest.raises(ConfigError, match="vocabulary") as caught:
        run_async(scenario())
    assert "engine.draft_model" in (caught.value.hint or "")
    assert not log.exists(), "no process was started"


async def _timings(engine: LlamaCppEngine, prompt: str) -> dict[str, Any]:
    """What llama.cpp itself says of an answer, which our port has no place for."""
    process = engine._process
    assert process is not None
    headers = {"Authorization": f"Bearer {process.api_key}"}
    body = {"prompt": prompt, "n_predict": 16, "temperature": 0}
    async with (
        aiohttp.ClientSession(process.url, headers=headers) as http,
        http.post("/completion", json=body) as answer,
    ):
        found: dict[str, Any] = json.loads(await answer.read())["timings"]
        return found
