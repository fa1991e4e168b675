"""What a model server says of itself: whose it is, how many tokens an answer has with its prompt, and how many answers
it gives at once.

The protocol has no word for the last two, so each kind of server is asked in its own way, which `accounts/` knows. What
one does not say stays unknown: nothing is guessed from the model's name or from what it was trained with. Nobody waits
long for it, and whoever asks decides when to ask again.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from headrace.engine.accounts import llama_server, lm_studio, ollama, sglang, tgi, vllm
from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.reading import count, decode
from headrace.engine.accounts.table import beside
from headrace.engine.port import Capabilities
from headrace.engine.presets import Preset, preset_of
from headrace.engine.upstream.port import Upstream
from headrace.errors import EngineError

WITHIN_S = 2.0
"""In which a server that is up lists its models."""

MORE_WITHIN_S = 0.5
"""In which it says what it holds. A vLLM that is asked for the first time needs seconds, and then knows it by heart."""


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


async def introduce(upstream: Upstream, *, model: str, preset: Preset | None = None) -> Introduction | None:
    """Ask the server, whose `preset` is known or is looked for. None if nothing can be said of it: it cannot be
    reached, or there is only a proxy's page about it. Takes at most `WITHIN_S` and `MORE_WITHIN_S`."""
    listing = await _said(upstream, f"{upstream.base_url}/models", within=WITHIN_S)
    models = listed(listing) if listing is not None else None
    if listing is None or (models is None and preset is None):
        return None
    known = preset or preset_of([entry.owned_by for entry in models or ()])
    context = _context_of(models or [], model)
    if known is None or known.name not in _ASKED:
        return Introduction(preset=known, context_tokens=context, complete=models is not None)
    held = await _held(upstream, known.name, model)
    if held is None:
        return Introduction(preset=known, context_tokens=context, complete=False)
    return Introduction(preset=known, context_tokens=held.context_tokens or context, slots=held.slots)


def listed(answer: bytes) -> list[Listed] | None:
    """The models of a list; None for what no API says, such as a proxy's page about a server that is not up yet."""
    try:
        return msgspec.json.decode(answer, type=_Models).data
    except msgspec.ValidationError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _held(upstream: Upstream, name: str, model: str) -> Capacity | None:
    """What the first place says that says anything. None if it may say more later."""
    paths, read = _ASKED[name]
    held = None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MORE_WITHIN_S
    for path in paths:
        said = await _said(upstream, beside(upstream.base_url, path), within=deadline - loop.time())
        if (found := decode(said or b"")) is not None:
            held = read(found, model)
        if held not in (None, Capacity()):
            break
    return held


async def _said(upstream: Upstream, url: str, *, within: float) -> bytes | None:
    try:
        async with asyncio.timeout(within):
            return await upstream.get(url)
    except (EngineError, TimeoutError):
        return None


def _context_of(models: list[Listed], model: str) -> int | None:
    """Of this model, else the least of all."""
    told = {entry.id: context for entry in models if (context := count(entry.max_model_len))}
    return told.get(model) or min(told.values(), default=None)


_ASKED: Mapping[str, tuple[tuple[str, ...], Callable[[object, str], Capacity | None]]] = {
    "vllm": (vllm.CAPACITY_PATHS, vllm.capacity),
    "sglang": (sglang.CAPACITY_PATHS, sglang.capacity),
    "llama-server": (llama_server.CAPACITY_PATHS, llama_server.capacity),
    "tgi": (tgi.CAPACITY_PATHS, tgi.capacity),
    "ollama": (ollama.CAPACITY_PATHS, ollama.capacity),
    "lmstudio": (lm_studio.CAPACITY_PATHS, lm_studio.capacity),
}
"""By the names of presets. The others say nothing of the kind, and services are never asked."""
