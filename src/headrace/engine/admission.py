"""Which requests an engine may be asked at all: decided before anything is sent."""

from headrace.engine.port import Capabilities, ModelRequest
from headrace.errors import EngineRejected


def require_supported(request: ModelRequest, capabilities: Capabilities, *, engine: str) -> None:
    """Raises EngineRejected for a request that asks for what the engine cannot do, or for nonsense."""
    _require_sense(request)
    for wanted, able, what in (
        (bool(request.tools), capabilities.tools, "tools"),
        (request.grammar is not None, capabilities.grammar, "a grammar"),
        (request.json_schema is not None, capabilities.json_schema, "a JSON schema"),
        (request.prompt is not None, capabilities.raw_prompt, "a raw prompt"),
        (request.continued is not None, capabilities.continuation, "the beginning of an answer"),
    ):
        if wanted and not able:
            raise EngineRejected(f"The engine {engine} cannot work with {what}.", hint="Choose another engine for it.")


def _require_sense(request: ModelRequest) -> None:
    if request.max_tokens is not None and request.max_tokens < 1:
        raise EngineRejected(
            f"max_tokens is {request.max_tokens}, but at least one token must be asked for.",
            hint="Leave max_tokens out for the engine's own limit.",
        )
    if request.continued == "":
        raise EngineRejected("The answer to go on with is empty.", hint="Leave `continued` out for a new answer.")
    if request.grammar is not None and request.json_schema is not None:
        raise EngineRejected("A request has a grammar or a JSON schema, not both.", hint="Leave one of them out.")
    if request.prompt is None and not request.messages:
        raise EngineRejected("The request has neither messages nor a prompt.", hint="Give one of them.")
    if request.prompt is not None and request.messages:
        raise EngineRejected("A request has messages or a prompt, not both.", hint="Leave one of them out.")
