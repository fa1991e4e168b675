"""What Anthropic's models take, by the generation that their names tell. Each of them refuses what it does not take.

A name that tells nothing is taken for the newest: those take the least.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.engine.port import Capabilities
from headrace.engine.presets import ANTHROPIC

_GENERATION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST = (99, 0)
_SAMPLED_UNTIL = (4, 6)  # later ones choose for themselves
_CONTINUING_UNTIL = (4, 5)  # later ones refuse a conversation that ends with the assistant


def generation(model: str) -> tuple[int, int]:
    """`claude-3-7-sonnet-latest` is (3, 7), `claude-opus-4-20250514` is (4, 0)."""
    found = _GENERATION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found is not None else _NEWEST


def claude_capabilities(model: str, *, thinking: Mapping[str, Any] | None, continuation: bool | None) -> Capabilities:
    """While it thinks, a model takes neither sampling nor a forced call nor the beginning of an answer.

    `continuation` overrules what the name tells."""
    able = ANTHROPIC.capabilities
    if thinking is not None:
        return msgspec.structs.replace(able, tool_choice=frozenset({"auto", "none"}))
    known = generation(model)
    return msgspec.structs.replace(
        able,
        sampling=able.sampling | ({"temperature", "top_p", "top_k"} if known <= _SAMPLED_UNTIL else set()),
        continuation=known <= _CONTINUING_UNTIL if continuation is None else continuation,
    )
