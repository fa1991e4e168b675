"""Requests as the token ids that a model reads, and the bytes of each id: whatever library has the tokenizer."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from headrace.engine.answer.detokenise import Detokeniser
from headrace.engine.stepped.lines import Generate
from headrace.messages import Message, ToolRequest

_SAMPLE = "Hello world,\n  你好 😀 é\u0301 {}"  # all that is difficult


class Tokenizer(Protocol):
    """Raises ValueError for what it cannot read or write."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """`special` adds what the model wants to see around a text."""
        ...

    def resume(self, text: str) -> list[int]:
        """Of a text that goes on after another: nothing is added to it, not even the blank that some put in front."""
        ...

    def write(self, history: Sequence[dict[str, Any]]) -> str:
        """The conversation as the model's template has it, up to where the answer begins."""
        ...


def prompt_tokens(request: Generate, tokenizer: Tokenizer) -> list[int]:
    """Without what has been said already. Raises ValueError."""
    if request.prompt is not None:
        ids = tokenizer.encode(request.prompt, special=True)
    else:
        ids = tokenizer.encode(tokenizer.write([_entry(message) for message in request.messages]), special=False)
    if not ids:
        raise ValueError("The prompt is empty.")
    return ids


def said_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Encoded by itself, as its first token was chosen: nothing may be joined at the seam. Raises ValueError."""
    return tokenizer.resume(text) if text else []


def fitting(candidates: Iterable[Sequence[bytes]], tokenizer: Tokenizer) -> Sequence[bytes]:
    """The bytes of each id, as the candidate has them that shows a difficult text as it is. Raises ValueError."""
    ids = tokenizer.encode(_SAMPLE, special=False)
    for pieces in candidates:
        text = Detokeniser(pieces)
        if (text.feed(ids) + text.end()).lstrip() == _SAMPLE:
            return pieces
    raise ValueError("its vocabulary is written in a way that is not known")


def _entry(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.call_id is not None:
        entry["tool_call_id"] = message.call_id
    return entry


def _call(call: ToolRequest) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
