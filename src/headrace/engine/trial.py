"""A model server on trial: what it serves, how soon it answers, and what it can do. `headrace doctor` shows it."""

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.engine.accounts import vllm
from headrace.engine.accounts.remark import Remark
from headrace.engine.accounts.table import account_of, beside
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities, Engine
from headrace.engine.presets import preset_at
from headrace.engine.warm_up import WITHIN_S, say_a_token
from headrace.errors import EngineError, EngineRejected

LIST_WITHIN_S = 5.0
ACCOUNT_WITHIN_S = 20.0
"""A vLLM that is asked for its settings for the first time looks at its whole machine."""

_SHOWN = {
    "tools": "tools",
    "json_schema": "JSON schema",
    "grammar": "grammar",
    "regex": "regex",
    "thinking": "thinking",
    "raw_prompt": "raw prompts",
    "continuation": "going on with a cut answer",
    "logprobs": "logprobs",
}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """`error` is why it did not answer, None if it did. `served` are the names of its models, none where it does not
    list them. `vector` is how many numbers an embedding has, of a server that makes those and no answers. `remarks` are
    on how it is set up, where it tells."""

    model: str
    served: tuple[str, ...]
    first_token_ms: float
    can: tuple[str, ...]
    context_tokens: int | None
    error: EngineError | None = None
    vector: int | None = None
    remarks: tuple[Remark, ...] = ()

    @property
    def text(self) -> str:
        """In one line."""
        served = f" It serves {', '.join(self.served)}." if self.served and self.model not in self.served else ""
        if self.error is not None and self.vector is not None:
            does = f"makes embeddings of {self.vector} numbers. No agent can use it, as it answers nothing"
            return f"{self.model} {does}: {self.error.message}{served}"
        if self.error is not None:
            return f"{self.error.message} {self.error.hint or ''}".rstrip() + served
        context = f"; {self.context_tokens} tokens of context" if self.context_tokens else ""
        can = ", ".join(self.can) or "text only"
        return f"{self.model} answers, first token after {self.first_token_ms:.0f} ms; it can: {can}{context}.{served}"


async def put_on_trial(engine: Engine) -> Trial:
    """Enter the engine and have it say one token, which takes at most a minute and a few seconds. It is asked how it is
    set up, unless its address is that of a service: those tell nobody."""
    loop = asyncio.get_running_loop()
    served: tuple[str, ...] = ()
    noticed: tuple[Remark, ...] = ()
    error: EngineError | None = None
    took, vector = 0.0, None
    try:
        async with engine:
            served = await _served_by(engine)
            began = loop.time()
            try:
                await say_a_token(engine, within=WITHIN_S)
            except EngineRejected as refused:
                error, vector = refused, await _vector_of(engine)
            took = loop.time() - began
            noticed = await _account_of(engine)
    except EngineError as failure:
        error = failure
    return Trial(
        model=engine.model,
        served=served,
        first_token_ms=took * 1000,
        can=shown(engine.capabilities),
        context_tokens=engine.capabilities.context_tokens,
        error=error,
        vector=vector,
        remarks=noticed,
    )


async def _vector_of(engine: Engine) -> int | None:
    """The size of an embedding, None where there is none to be had."""
    if not isinstance(engine, OpenAIEngine):
        return None
    try:
        async with asyncio.timeout(WITHIN_S):
            [vector] = await engine.embed(["Hi"])
    except (EngineError, TimeoutError):
        return None
    return len(vector)


def shown(capabilities: Capabilities) -> tuple[str, ...]:
    """What it can do, in words."""
    return tuple(words for name, words in _SHOWN.items() if getattr(capabilities, name))


async def _served_by(engine: Engine) -> tuple[str, ...]:
    if not isinstance(engine, OpenAIEngine):
        return ()
    try:
        async with asyncio.timeout(LIST_WITHIN_S):
            return tuple(await engine.models())
    except (EngineError, TimeoutError):
        return ()


async def _account_of(engine: Engine) -> tuple[Remark, ...]:
    """What a server says of itself. It may be that nobody shall see it."""
    if not isinstance(engine, OpenAIEngine):
        return ()
    base_url = engine.base_url
    if preset_at(base_url) is not None:
        return ()
    got: dict[str, bytes] = {}

    async def said_at(path: str) -> bytes:
        if path not in got:
            got[path] = await _said_at(engine, beside(base_url, path))
        return got[path]

    found = await account_of(said_at)
    weights = vllm.checkpoint_of(got.get(vllm.PATHS[-1], b""))
    return (*found, *await asyncio.to_thread(_checkpoint_remarks, weights)) if weights else found


def _checkpoint_remarks(weights: str) -> tuple[Remark, ...]:
    """Of weights that are on this machine as well: a folder, or what was downloaded from the hub under this name."""
    hub = Path.home() / ".cache" / "huggingface" / "hub" / f"models--{weights.replace('/', '--')}" / "snapshots"
    for folder, pattern in ((Path(weights), "config.json"), (hub, "*/config.json")):
        with suppress(OSError, ValueError):  # a name that no file can have
            for config in folder.glob(pattern):
                return tuple(vllm.checkpoint_remarks(config.read_bytes()))
    return ()


async def _said_at(engine: OpenAIEngine, url: str) -> bytes:
    """Nothing, if it does not say."""
    try:
        async with asyncio.timeout(ACCOUNT_WITHIN_S):
            return await engine.get(url)
    except (EngineError, TimeoutError):
        return b""
