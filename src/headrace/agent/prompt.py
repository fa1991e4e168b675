"""How a prompt is laid out. Pure, and byte-stable: the same run gives the same bytes in every process.

    tools, sorted by name | the system text | the thread's history, only ever appended to | a volatile tail

A model server keeps what it has computed for a prefix. Whatever changes (a date, what was just retrieved) therefore
stands at the end, and each turn's prompt begins with the whole of the one before it, save its tail.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from headrace.engine.port import ModelRequest
from headrace.errors import InvalidRequest
from headrace.messages import Message, ToolSpec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's `options` may hold. `tool_choice` is auto, none, required or a tool's name.

    `instructions` are for this run only, after the agent's own: later runs of the thread don't see them.
    `parallel_tool_calls` false runs the calls of a turn one after the other; `stream_arguments` records their
    fragments. `priority` is 0 when a person waits, and nothing goes before that. Options that stand here and in
    `ModelRequest` go to the engine, and others are ignored.
    """

    instructions: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    logit_bias: dict[int, float] | None = None
    tool_choice: str | None = None
    json_schema: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=0)] = 0
    parallel_tool_calls: bool = True
    stream_arguments: bool = False


def read_options(raw: Mapping[str, Any]) -> Options:
    """Raises InvalidRequest for an option of the wrong type."""
    try:
        return msgspec.convert(raw, Options, str_keys=True)
    except msgspec.ValidationError as exc:
        said = str(exc).replace("`$.", "`")
        raise InvalidRequest(f"A model option is wrong: {said}.", hint="Leave it out for the engine's own.") from exc


def sorted_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(sorted(specs, key=lambda spec: spec.name))


def layout(*, system: str, history: Sequence[Message], turns: Sequence[Message], tail: str = "") -> tuple[Message, ...]:
    """`history` is the thread's earlier runs, `turns` this run: its input and what has been said since."""
    head = [Message(role="system", content=system)] if system else []
    end = [Message(role="system", content=tail)] if tail else []
    return (*head, *history, *turns, *end)


def request(
    options: Options,
    *,
    messages: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
    model: str | None,
    session: str,
    request_id: str,
    scope: str | None = None,
    first: bool = True,
    closing: bool = False,
) -> ModelRequest:
    """`closing` asks for words instead of calls. The tools stay in the prompt, so that its prefix does.

    A call that `tool_choice` forces is forced in the `first` turn only: else the model could never answer.
    """
    return ModelRequest(
        messages=messages,
        model=model,
        tools=tools,
        tool_choice=_tool_choice(options, tools, first, closing),
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        stop=(options.stop,) if isinstance(options.stop, str) else options.stop,
        logit_bias=options.logit_bias,
        grammar=options.grammar,
        regex=options.regex,
        json_schema=options.json_schema or _schema_of(options.response_format),
        session=session,
        scope=scope,
        request_id=request_id,
        priority=options.priority,
    )


def _tool_choice(options: Options, tools: tuple[ToolSpec, ...], first: bool, closing: bool) -> str | None:
    if not tools:
        return None
    if closing:
        return "none"
    forced = options.tool_choice not in (None, "auto", "none")
    return None if forced and not first else options.tool_choice


def _schema_of(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """The JSON Schema of OpenAI's `response_format`."""
    kind: Literal["text", "json_object", "json_schema"] | Any = (response_format or {}).get("type", "text")
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema" or response_format is None:
        return None
    schema: dict[str, Any] | None = response_format.get("json_schema", {}).get("schema")
    return schema
