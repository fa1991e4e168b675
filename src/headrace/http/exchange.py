"""One HTTP request and its answer: what is read of it, what is written back. Limits are checked here."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from headrace.errors import HeadraceError, InvalidRequest, PayloadTooLarge, Unauthorized
from headrace.http.outlet import Receive, Scope, Send
from headrace.http.problem import RETRY_AFTER_S, problem
from headrace.wire.codec import nests_too_deep

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]

_json = msgspec.json.Encoder()


class Exchange:
    """A request, its caller and the way to answer.

    `path_values` are what the route's pattern found; `started` is true once the answer's headers have gone.
    """

    def __init__(self, *, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.path_values: Mapping[str, str] = {}
        self.tenant = "default"
        self.started = False
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self._max_body = max_body

    async def start(self, status: int, headers: Headers) -> None:
        """Send the headers of the answer."""
        self.started = True
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *self.extra_headers]})

    @property
    def run_id(self) -> str:
        return self.path_values["run_id"]

    def header(self, name: bytes) -> str | None:
        """The first header of that (lower case) name."""
        for known, value in self.scope["headers"]:
            if known == name:
                text: str = value.decode("latin-1")
                return text.strip()
        return None

    @cached_property
    def query(self) -> dict[str, str]:
        raw: bytes = self.scope["query_string"]
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}

    def query_int(self, name: str, default: int, *, low: int, high: int) -> int:
        """Raises InvalidRequest outside `low` to `high`."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or len(text) > 9 or not low <= int(text) <= high:
            raise InvalidRequest(f"{name}={text[:40]!r} is not a number from {low} to {high}.")
        return int(text)

    async def body(self) -> bytes:
        """The whole body. Raises PayloadTooLarge as soon as it is."""
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._max_body:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise InvalidRequest("The connection closed before the request's body had come.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(parts)

    async def gone(self) -> None:
        """Return when the client has left."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def decode(self, body: bytes, wanted: type[T]) -> T:
        """The body as JSON of a type. Raises InvalidRequest with the place that does not fit."""
        try:
            value = msgspec.json.decode(body, type=wanted)
            _json.encode(value)  # a lone surrogate can be read but never written
        except msgspec.ValidationError as exc:
            raise InvalidRequest(f"The request does not fit: {exc}.", hint="See PROTOCOL.md for the fields.") from exc
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise InvalidRequest(f"The body is not valid JSON: {exc}.", hint="Send a JSON object in UTF-8.") from exc
        if nests_too_deep(body):
            raise InvalidRequest("The body's JSON is nested too deeply.", hint="A hundred levels are fine.")
        return value

    async def answer(self, value: Any, *, status: int = 200, headers: Headers = ()) -> None:
        await self.respond(_json.encode(value), b"application/json", status=status, headers=headers)

    async def answer_error(self, error: HeadraceError) -> None:
        shown = problem(error)
        headers = [(b"retry-after", b"%d" % RETRY_AFTER_S)] if shown.status == 503 else []
        if shown.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self.respond(_json.encode(shown), b"application/problem+json", status=shown.status, headers=headers)

    async def respond(self, body: bytes, content_type: bytes, *, status: int = 200, headers: Headers = ()) -> None:
        length = b"%d" % len(body)
        await self.start(status, [(b"content-type", content_type), (b"content-length", length), *headers])
        await self.send({"type": "http.response.body", "body": body})

    async def respond_empty(self, status: int, headers: Headers = ()) -> None:
        """204 or 304: no body."""
        await self.start(status, headers)
        await self.send({"type": "http.response.body", "body": b""})

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body is larger than {self._max_body} bytes.", hint="Send less, or raise limits.body_bytes."
        )


class Keys:
    """Which tenant an API key belongs to. Without keys everybody is the tenant `default`."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._tenants = {hashlib.sha256(key.encode()).digest(): name for name, key in keys.items()}

    def tenant(self, authorization: str | None) -> str:
        """Raises Unauthorized."""
        if not self._tenants:
            return "default"
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        for known, name in self._tenants.items():
            if scheme.lower() == "bearer" and hmac.compare_digest(known, digest):
                return name
        raise Unauthorized("This server wants an API key.", hint="Send Authorization: Bearer KEY.")
