"""What a model server says of itself: whose it is, how many tokens an answer has with its prompt, and how many answers
it gives at once.

The protocol has no word for the last two, so each kind of server is asked in its own way, from its own documents. What
one does not say stays unknown: nothing is guessed from the model's name or from what it was trained with. Nobody waits
long for it, and whoever asks decides when to ask again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from headrace.engine.port import Capabilities
from headrace.engine.presets import Preset, preset_of
from headrace.engine.upstream.port import Upstream
from headrace.errors import EngineError

WITHIN_S = 2.0
"""In which a server that is up lists its models."""

MORE_WITHIN_S = 0.5
"""In which it says what it holds. A vLLM that is asked for the first time needs seconds, and then knows it by heart."""

AGAIN_S = 10.0
"""After which a server that had not said everything is asked again."""


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """`preset` is whose server it is, None for a stranger. `context_tokens` are those of a prompt and its answer
    together, `slots` how many answers it gives at once, None for what it did not say. It may say more later unless
    this is `complete`, for example once its model is loaded."""

    preset: Preset | None
    context_tokens: int | None = None
    slots: int | None = None
    complete: bool = True

    def completes(self, able: Capabilities, *, before: Capabilities) -> Capabilities:
        """What a server can do that is `able` to all this: with what it holds, as far as `able` does not know better.
        As long as more may come, what it had said `before` stands."""
        rest = Capabilities() if self.complete else before
        return msgspec.structs.replace(
            able,
            context_tokens=able.context_tokens or self.context_tokens or rest.context_tokens,
            slots=able.slots or self.slots or rest.slots,
        )


class Listed(msgspec.Struct):
    """A model in the server's list. vLLM and SGLang say how long its context is; an adapter has that of its model."""

    id: str = ""
    owned_by: str = ""
    max_model_len: object = None


class _Models(msgspec.Struct):
    data: list[Listed]


class _Held(msgspec.Struct, frozen=True):
    context_tokens: int | None = None
    slots: int | None = None


async def introduce(upstream: Upstream, *, model: str, preset: Preset | None = None) -> Introduction | None:
    """Ask the server, whose `preset` is known or is looked for. None if nothing can be said of it: it cannot be
    reached, or there is only a proxy's page about it. Takes at most `WITHIN_S` and `MORE_WITHIN_S`."""
    base = upstream.base_url
    listing = await _said(upstream, f"{base}/models", WITHIN_S)
    models = listed(listing) if listing is not None else None
    if listing is None or (models is None and preset is None):
        return None
    known = preset or preset_of([entry.owned_by for entry in models or ()])
    context = _context_of(models or [], model)
    if known is None or known.name not in _ASKED:
        return Introduction(preset=known, context_tokens=context, complete=models is not None)
    path, read = _ASKED[known.name]
    said = _decoded(await _said(upstream, base.removesuffix("/v1") + path, MORE_WITHIN_S))
    held = read(said, model) if said is not None else None
    if held is None:
        return Introduction(preset=known, context_tokens=context, complete=False)
    return Introduction(preset=known, context_tokens=held.context_tokens or context, slots=held.slots)


def listed(answer: bytes) -> list[Listed] | None:
    """The models of a list; None for what no API says, such as a proxy's page about a server that is not up yet."""
    try:
        return msgspec.json.decode(answer, type=_Models).data
    except msgspec.ValidationError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def _said(upstream: Upstream, url: str, within: float) -> bytes | None:
    try:
        async with asyncio.timeout(within):
            return await upstream.get(url)
    except (EngineError, TimeoutError):
        return None


def _decoded(answer: bytes | None) -> object:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(answer) if answer else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _context_of(models: list[Listed], model: str) -> int | None:
    """Of this model, else the least of all."""
    told = {entry.id: context for entry in models if (context := _count(entry.max_model_len))}
    return told.get(model) or min(told.values(), default=None)


# How each server is asked, and how its answer is read: None where it may say more later.


def _read_vllm(said: object, _model: str) -> _Held:
    """`/server_info` is there with VLLM_SERVER_DEV_MODE=1 only. Every data-parallel rank has a scheduler of its own,
    and an API server in front of all of them or of those beside it."""
    settings = _at(said, "vllm_config")
    ranks = _at(settings, "parallel_config")
    beside = _at(ranks, "data_parallel_external_lb") or _at(ranks, "data_parallel_hybrid_lb")
    count = _count(_at(ranks, "data_parallel_size_local" if beside else "data_parallel_size")) or 1
    each = _count(_at(settings, "scheduler_config", "max_num_seqs"))
    return _Held(slots=each * count if each else None)


def _read_sglang(said: object, _model: str) -> _Held:
    """One internal state for each data-parallel rank. What was asked for at its start may be more than it has got."""
    ranks = _entries(said, "internal_states")
    return _Held(slots=sum(_count(rank.get("effective_max_running_requests_per_dp")) or 0 for rank in ranks) or None)


def _read_llama_server(said: object, _model: str) -> _Held | None:
    """Of a slot: `n_ctx` is what one answer has. While it loads its model it says an error."""
    if _at(said, "error"):
        return None
    context = _count(_at(said, "default_generation_settings", "n_ctx"))
    return _Held(context_tokens=context, slots=_count(_at(said, "total_slots")))


def _read_tgi(said: object, _model: str) -> _Held:
    """One request more than these is refused by it."""
    return _Held(_count(_at(said, "max_total_tokens")), _count(_at(said, "max_concurrent_requests")))


def _read_ollama(said: object, model: str) -> _Held | None:
    """Of the models that are loaded. How many answers each gives at once it tells nobody."""
    names = (model, f"{model}:latest")
    mine = [entry for entry in _entries(said, "models") if entry.get("name") in names or entry.get("model") in names]
    return _least(_count(entry.get("context_length")) for entry in mine)


def _read_lm_studio(said: object, model: str) -> _Held | None:
    """Of the instances of a model that are loaded."""
    loaded = [
        instance
        for entry in _entries(said, "models")
        for instance in _entries(entry, "loaded_instances")
        if model in (entry.get("key"), instance.get("id"))
    ]
    return _least(_count(_at(instance, "config", "context_length")) for instance in loaded)


_ASKED: Mapping[str, tuple[str, Callable[[object, str], _Held | None]]] = {
    "vllm": ("/server_info?config_format=json", _read_vllm),
    "sglang": ("/server_info", _read_sglang),
    "llama-server": ("/props", _read_llama_server),
    "tgi": ("/info", _read_tgi),
    "ollama": ("/api/ps", _read_ollama),
    "lmstudio": ("/api/v1/models", _read_lm_studio),
}
"""By the names of presets. The others say nothing of the kind, and services are never asked."""


def _least(contexts: Iterable[int | None]) -> _Held | None:
    told = [context for context in contexts if context]
    return _Held(context_tokens=min(told)) if told else None


def _at(said: object, *path: str) -> Any:
    """What stands there, None if nothing does."""
    for name in path:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def _entries(said: object, name: str) -> list[dict[str, Any]]:
    entries = _at(said, name)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
