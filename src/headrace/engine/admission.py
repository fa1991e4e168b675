"""Which requests an engine may be asked at all: decided before anything is sent.

Nothing is dropped in silence: what an engine cannot do is refused by the name of the field that asks for it.
"""

from collections.abc import Iterator, Sequence

from headrace.engine.port import PARAMETERS, Capabilities, ModelRequest, ToolChoice
from headrace.errors import EngineRejected

_SHAPES = ("grammar", "regex", "json_schema")
_ELSEWHERE = "Leave it out, or choose another engine. What only this server knows can go into `extra`."


def require_supported(request: ModelRequest, capabilities: Capabilities, *, engine: str) -> None:
    """Raises EngineRejected for a request that asks for what the engine cannot do, or for nonsense."""
    _require_sense(request)
    for field, hint in _beyond(request, capabilities):
        raise EngineRejected(f"The engine {engine} cannot work with {field}.", hint=hint)


def require_texts(texts: Sequence[str]) -> None:
    """Raises EngineRejected for a text that has no embedding."""
    if "" in texts:
        message = f"Text {list(texts).index('')} (counted from 0) is empty, so it has no embedding."
        raise EngineRejected(message, hint="Leave it out.")


def _beyond(request: ModelRequest, able: Capabilities) -> Iterator[tuple[str, str]]:
    """Every field that asks for too much, and what to do about it."""
    for field in sorted(PARAMETERS - able.sampling):
        if getattr(request, field) not in (None, ()):
            yield f"`{field}`", _ELSEWHERE
    for shape in _SHAPES:
        if getattr(request, shape) is not None and not getattr(able, shape):
            others = " or ".join(f"`{other}`" for other in _SHAPES if getattr(able, other))
            yield f"`{shape}`", f"It can hold to {others}." if others else "Choose another engine for it."
    if request.logprobs is not None and not able.logprobs:
        yield "`logprobs`", _ELSEWHERE
    if request.tools and not able.tools:
        yield "`tools`", "Choose another engine, or an agent without tools."
    elif request.tools and (choice := _kind(request.tool_choice)) not in able.tool_choice:
        can = ", ".join(sorted(able.tool_choice))
        yield f"`tool_choice` {choice}", f"It can do: {can}." if can else "Leave it out."
    if request.prompt is not None and not able.raw_prompt:
        yield "a raw `prompt`", "Give `messages`."
    if request.continued is not None and not able.continuation:
        yield "`continued`, the beginning of an answer", "Ask for the whole answer again."


def _kind(choice: str | None) -> ToolChoice:
    match choice:
        case None | "auto":
            return "auto"
        case "none" | "required":
            return choice
        case _:
            return "named"


def _require_sense(request: ModelRequest) -> None:
    if request.max_tokens is not None and request.max_tokens < 1:
        raise EngineRejected(
            f"`max_tokens` is {request.max_tokens}, but at least one token must be asked for.",
            hint="Leave `max_tokens` out for the engine's own limit.",
        )
    if request.continued == "":
        raise EngineRejected("The answer to go on with is empty.", hint="Leave `continued` out for a new answer.")
    if "" in request.stop:
        raise EngineRejected("A `stop` is empty.", hint="Every answer holds that: leave it out.")
    if request.logprobs is not None and request.logprobs < 0:
        raise EngineRejected(f"`logprobs` is {request.logprobs}.", hint="0 asks for those of the chosen tokens only.")
    _require_one_shape(request)
    if request.prompt is None and not request.messages:
        raise EngineRejected("The request has neither messages nor a prompt.", hint="Give one of them.")
    if request.prompt is not None and request.messages:
        raise EngineRejected("A request has messages or a prompt, not both.", hint="Leave one of them out.")


def _require_one_shape(request: ModelRequest) -> None:
    asked = [shape for shape in _SHAPES if getattr(request, shape) is not None]
    if len(asked) > 1:
        fields = " and ".join(f"`{shape}`" for shape in asked)
        raise EngineRejected(f"A request has {fields}, but an answer has one shape.", hint="Leave one of them out.")
    named = _kind(request.tool_choice) == "named"
    if request.tools and named and request.tool_choice not in {tool.name for tool in request.tools}:
        raise EngineRejected(
            f"`tool_choice` is {request.tool_choice!r}, and no tool of the request is called so.",
            hint="Give auto, none, required or the name of one of `tools`.",
        )
