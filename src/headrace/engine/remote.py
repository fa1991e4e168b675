"""The engine for a server that somebody else runs, chosen by its preset, by its address, or by what it says it is."""

import msgspec

from headrace.engine.anthropic.engine import AnthropicEngine
from headrace.engine.openai.engine import OpenAIEngine
from headrace.engine.port import Capabilities
from headrace.engine.presets import CHAT, CONTINUING, Preset, preset, preset_at
from headrace.engine.upstream.port import Timeouts
from headrace.errors import ConfigError


def remote_engine(
    url: str | None,
    *,
    server: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    continuation: bool | None = None,
    timeouts: Timeouts | None = None,
    warm: bool = False,
) -> OpenAIEngine | AnthropicEngine:
    """`server` is the name of a preset; without one the address may tell, and else the server is asked on entering. How
    much it holds it is asked in any case, unless it is a service.
    `continuation` says whether it goes on with an answer that was cut, None for what is known of it. With `warm` a
    server of one's own says a token when the engine is entered; the hardware of a service can.

    Raises:
        ConfigError: neither a URL nor a preset, an unknown preset, a URL that is none, or a service without a model.
    """
    known = preset(server) if server is not None else preset_at(url or "")
    address = url or (known.url if known is not None else None)
    if address is None:
        raise ConfigError("No model server is named.", hint="Give --engine-url, or engine.preset.")
    if known is not None and known.hosted and model is None:
        raise ConfigError(f"{known.name} serves many models.", hint="Name one with --model.")
    if known is not None and known.api == "messages":
        return AnthropicEngine(
            address, model=model or "default", api_key=api_key, continuation=continuation, timeouts=timeouts
        )
    return OpenAIEngine(
        address,
        model=model or "default",
        api_key=api_key,
        name=known.name if known is not None else "openai",
        capabilities=_capabilities(known, continuation),
        preset=known if known is not None and not known.hosted else None,
        spelling=known.spelling if known is not None else None,
        timeouts=timeouts,
        warm=warm and not (known is not None and known.hosted),
    )


def _capabilities(known: Preset | None, continuation: bool | None) -> Capabilities | None:
    """None when the server must be asked."""
    if known is None:
        return None if continuation is None else CONTINUING if continuation else CHAT
    if continuation is None:
        return known.capabilities
    return msgspec.structs.replace(known.capabilities, continuation=continuation)
