"""Sources as OpenAI's annotations. Indexes count characters of the message, the end exclusive."""

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.events import SourceCited


def distinct(sources: Iterable[SourceCited]) -> list[SourceCited]:
    """Each source once, in the order in which they were first cited."""
    first: dict[object, SourceCited] = {}
    for source in sources:
        first.setdefault((source.id, source.span), source)
    return list(first.values())


def url_citation(source: SourceCited, text: str) -> dict[str, Any] | None:
    """Only a source with an absolute address can be one: the schema wants a URI."""
    if source.url is None or "://" not in source.url:
        return None
    start, end = _span(source, text)
    return {"url": source.url, "title": source.title, "start_index": start, "end_index": end}


def chat_annotations(sources: Iterable[SourceCited], text: str) -> list[dict[str, Any]]:
    """Sources without an address have no place in the Chat schema."""
    cited = [url_citation(source, text) for source in distinct(sources)]
    return [{"type": "url_citation", "url_citation": citation} for citation in cited if citation is not None]


def response_annotations(sources: Sequence[SourceCited], text: str) -> list[dict[str, Any]]:
    """A source without an address is a file."""
    return [_response_annotation(source, text, i) for i, source in enumerate(distinct(sources))]


def _response_annotation(source: SourceCited, text: str, index: int) -> dict[str, Any]:
    citation = url_citation(source, text)
    if citation is not None:
        return {"type": "url_citation", **citation}
    return {
        "type": "file_citation",
        "file_id": source.id,
        "filename": source.path or source.url or source.title,
        "index": index,
    }


def _span(source: SourceCited, text: str) -> tuple[int, int]:
    """Where in the message a source speaks: its own words if the message has them, else all of it."""
    at = text.find(source.text) if source.text else -1
    return (at, at + len(source.text)) if source.text and at >= 0 else (0, len(text))
