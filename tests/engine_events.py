"""The events of a chat-completions stream as chunks, without a server."""

import itertools
import json

from headrace.engine.openai.chunks import CompletionChunks
from headrace.engine.port import Chunk


def translate(*events: object, done: bool = True, stops: tuple[str, ...] = ()) -> list[Chunk]:
    """A string is an event's data as it is. The calls of servers that don't name them are `made-N`."""
    ids = itertools.count()
    completion = CompletionChunks(stops=stops, new_id=lambda: f"made-{next(ids)}")
    chunks: list[Chunk] = []
    for event in events:
        chunks += completion.feed(event if isinstance(event, str) else json.dumps(event))
    if done:
        completion.feed("[DONE]")
    return chunks + completion.finish()
