"""The engine that the configuration asks for: one server, several behind one name, a model that stands in, the embedded
one. The engines' own modules are loaded only when they are needed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headrace.config import EngineConfig, without_password
from headrace.engine.port import Engine
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.engine.anthropic.engine import AnthropicEngine
    from headrace.engine.models import Model
    from headrace.engine.openai.engine import OpenAIEngine

EMBEDDED_SLOTS = 4
"""Answers that the embedded model generates at once; more requests wait in it."""
EMBEDDED_CONTEXT = 2048
"""Tokens that each of them may hold."""
OPENVINO_SLOTS = 16
"""The same where OpenVINO is chosen, because many streams are what it is for."""
_LLAMACPP_KV: dict[str, Literal["f16", "q8_0", "q4_0"]] = {"q8_0": "q8_0", "f16": "f16", "q4_0": "q4_0"}
_OPENVINO_KV = {"q8_0": "u8", "f16": "f16", "f32": "f32"}
_TRANSFORMERS_KV: dict[str, Literal["full", "int8"]] = {"f32": "full", "q8_0": "int8"}


T = TypeVar("T")


def configured_engine(wanted: EngineConfig) -> Engine:
    """The servers named by `engine.url` or `engine.preset`, else the embedded model, whose `engine.model` is a known
    name or a GGUF file.

    Raises:
        ConfigError: what is asked for is incomplete, or the embedded model is not installed.
    """
    if wanted.fallback is None:
        return _engine(wanted)
    from headrace.engine.fallback import Fallback

    return Fallback([_engine(wanted, alone=False, waits=False), _engine(wanted.fallback, alone=False)])


def remote_engines(wanted: EngineConfig, *, warm: bool = False) -> dict[str, "OpenAIEngine | AnthropicEngine"]:
    """The engine for each server, by its address as it may be shown. `warm` as in `remote_engine`.

    Raises ConfigError.
    """
    if not wanted.urls and wanted.preset is None:
        return {}
    from headrace.engine.remote import remote_engine

    return {
        without_password(url or wanted.preset or ""): remote_engine(
            url,
            server=wanted.preset,
            model=wanted.model,
            api_key=wanted.api_key,
            continuation=wanted.continuation,
            warm=warm,
        )
        for url in wanted.urls or (None,)
    }


def _engine(wanted: EngineConfig, *, alone: bool = True, waits: bool = True) -> Engine:
    """`alone`: nobody else answers, so a start without any server that can makes no sense. `waits`: requests wait a
    while for servers that restart, since no other model can be asked instead."""
    if not wanted.urls and wanted.preset is None:
        return _embedded(wanted)
    limits = wanted.limits
    direct = limits == (None,) and waits
    remote = remote_engines(wanted, warm=direct and alone)  # a pool warms its replicas itself
    if direct:
        return next(iter(remote.values()))
    if len(remote) != len(limits):
        raise ConfigError("Two of the servers in engine.url differ only in their passwords.", hint="Name each once.")
    from headrace.engine.pool.pool import RESTART_WAIT, EnginePool

    named = {name: limit for name, limit in zip(remote, limits, strict=True) if limit is not None}
    return EnginePool(remote, limit=named, restart_wait=RESTART_WAIT if waits else 0.0, must_start=alone)


def _embedded(wanted: EngineConfig) -> Engine:
    if wanted.embedded != "transformers" and wanted.weights != "full":
        hint = "Take a GGUF file of the quantisation that you want, or engine.embedded = transformers."
        raise ConfigError(f"{wanted.embedded} has no weights of type {wanted.weights}.", hint=hint)
    if wanted.embedded == "openvino":
        return _openvino(wanted)
    if wanted.embedded == "transformers":
        return _transformers(wanted)
    from headrace.engine.gguf import calls_tools
    from headrace.engine.llamacpp.engine import LlamaCppEngine
    from headrace.engine.models import cache_dir

    path, known = _weights(wanted)
    settings: dict[str, Any] = {
        "slots": wanted.slots or EMBEDDED_SLOTS,
        "context": wanted.context_tokens or EMBEDDED_CONTEXT,
        "threads": wanted.threads,
        "kv": _kv(wanted, _LLAMACPP_KV),
        "home": cache_dir() / "llamacpp" if wanted.linger else None,
        "linger": wanted.linger,
        "ngram": wanted.ngram,
        "draft": Path(wanted.draft_model).expanduser() if wanted.draft_model is not None else None,
        "snapshot_tokens": wanted.snapshot_tokens,
    }
    if known is None:
        tools = wanted.tools or ("native" if path.is_file() and calls_tools(path) else "none")
        return LlamaCppEngine(path, tools=tools, **settings)
    return LlamaCppEngine(path, model=known.name, base=known.base, tools=wanted.tools or "none", **settings)


def _openvino(wanted: EngineConfig) -> Engine:
    from headrace.engine.openvino.engine import OpenVinoEngine

    path, known = _weights(wanted)
    if known is not None and known.base:
        raise ConfigError(
            f"OpenVINO does not read {known.title}.", hint="Choose smollm2, or engine.embedded = llamacpp."
        )
    return OpenVinoEngine(
        path,
        model=known.name if known is not None else None,
        slots=wanted.slots or OPENVINO_SLOTS,
        context=wanted.context_tokens or EMBEDDED_CONTEXT,
        threads=wanted.threads,
        kv=_kv(wanted, _OPENVINO_KV),
    )


def _transformers(wanted: EngineConfig) -> Engine:
    from headrace.engine.transformers.engine import TransformersEngine

    path, known = _weights(wanted)
    return TransformersEngine(
        path,
        model=known.name if known is not None else None,
        slots=wanted.slots or EMBEDDED_SLOTS,
        context=wanted.context_tokens or EMBEDDED_CONTEXT,
        threads=wanted.threads,
        weights=wanted.weights,
        kv=_kv(wanted, _TRANSFORMERS_KV),
        snapshot_tokens=wanted.snapshot_tokens,
    )


def _kv(wanted: EngineConfig, known: dict[str, T]) -> T:
    """The engine's own name for the cache that is asked for; the first one it knows, if none is. Raises ConfigError."""
    if wanted.kv is None:
        return next(iter(known.values()))
    if wanted.kv not in known:
        raise ConfigError(
            f"{wanted.embedded} has no cache of type {wanted.kv}.", hint=f"engine.kv: {', '.join(known)}."
        )
    return known[wanted.kv]


def _weights(wanted: EngineConfig) -> tuple[Path, "Model | None"]:
    """The file or folder that `engine.model` names, and what is known of it. Raises ConfigError."""
    from headrace.engine.models import installed, model

    named = wanted.model
    reads_folders = wanted.embedded in ("openvino", "transformers")
    if named is not None and (named.endswith(".gguf") or (reads_folders and "/" in named)):
        return Path(named).expanduser(), None
    known = model(named or "smollm2")
    path = installed(known.name)
    if path is None:
        raise ConfigError(
            f"The model {known.name} is not installed.",
            hint=f"Run `headrace models install {known.name}`, or name a server with --engine-url.",
        )
    return path, known
