"""What is said to a model server over HTTP, whoever holds the connection. No I/O."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headrace.errors import ConfigError, EngineRejected


def with_path(url: str) -> str:
    """A base URL with `/v1` where it has no path. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        known = False
    if not known:
        raise ConfigError(f"{url!r} is no URL of a model server.", hint="It looks like http://127.0.0.1:8000/v1.")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def headers_of(api_key: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of every request. A compressing proxy would hold tokens back until its buffer is full."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **(more or {})}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def id_header(request_id: str | None) -> dict[str, str]:
    """Ids that cannot stand in a header go without."""
    return {"X-Request-Id": request_id} if request_id and request_id.isascii() and request_id.isprintable() else {}


def json_bytes(body: dict[str, Any]) -> bytes:
    """Raises EngineRejected."""
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError) as exc:
        raise EngineRejected(f"The request cannot be written as JSON: {exc}", hint="Send valid Unicode text.") from exc
