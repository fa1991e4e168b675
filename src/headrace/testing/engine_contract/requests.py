"""What the engine contract asks: the requests, and how an answer is read."""

from typing import Any

import msgspec

from headrace.engine.port import Capabilities, Chunk, Engine, ModelRequest, Parameter, Text, ToolChoice
from headrace.messages import Message, ToolSpec

REQUEST = ModelRequest(messages=(Message(role="user", content="Say a few words."),), max_tokens=16, temperature=0.0)
LONG = ModelRequest(messages=(Message(role="user", content="Tell a long story."),), max_tokens=1500)


async def collect(engine: Engine, request: ModelRequest = REQUEST) -> list[Chunk]:
    """All chunks of one answer."""
    async with engine.stream(request) as chunks:
        return [chunk async for chunk in chunks]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


_SAMPLING: dict[Parameter, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 40,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": ("END",),
    "logit_bias": {5: -100.0},
}
_CHOICES: dict[ToolChoice, str] = {"auto": "auto", "none": "none", "required": "required", "named": "clock"}


def asking(capabilities: Capabilities) -> list[tuple[bool, ModelRequest]]:
    """A request for each thing an engine may be able to do, and whether this one says that it is."""
    tool = ToolSpec(name="clock")
    asked = [
        (name in capabilities.sampling, msgspec.structs.replace(REQUEST, **{"temperature": None, name: value}))
        for name, value in _SAMPLING.items()
    ]
    asked += [
        (
            capabilities.tools and kind in capabilities.tool_choice,
            msgspec.structs.replace(REQUEST, tools=(tool,), tool_choice=choice),
        )
        for kind, choice in _CHOICES.items()
    ]
    asked += [
        (capabilities.logprobs, msgspec.structs.replace(REQUEST, logprobs=0)),
        (capabilities.regex, msgspec.structs.replace(REQUEST, regex="a+")),
        (capabilities.tools, msgspec.structs.replace(REQUEST, tools=(tool,))),
        (capabilities.grammar, msgspec.structs.replace(REQUEST, grammar='root ::= "a"')),
        (capabilities.json_schema, msgspec.structs.replace(REQUEST, json_schema={"type": "object"})),
        (capabilities.raw_prompt, ModelRequest(prompt="Once upon a time", max_tokens=16)),
    ]
    if not capabilities.continuation:  # what a beginning is must be known to go on with it: that has a test of its own
        asked.append((False, msgspec.structs.replace(REQUEST, continued="Once upon")))
    return asked
