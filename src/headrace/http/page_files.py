"""The page's files, from memory. They are part of the package and change only with it."""

import hashlib
import mimetypes
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from headrace.http.app import Route
from headrace.http.exchange import Exchange

CONTENT_POLICY = b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"


class PageFile(msgspec.Struct, frozen=True):
    path: str
    body: bytes
    content_type: bytes
    etag: bytes


def _walk(folder: Traversable, prefix: str = "/") -> list[PageFile]:
    found: list[PageFile] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
            continue
        body = entry.read_bytes()
        kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
        charset = "; charset=utf-8" if kind.startswith("text/") or kind.endswith("javascript") else ""
        etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
        found.append(PageFile(prefix + entry.name, body, (kind + charset).encode(), etag))
    return found


async def _serve(file: PageFile, exchange: Exchange) -> None:
    fresh = "/assets/" in file.path  # their names carry a hash of their content
    headers = [
        (b"etag", file.etag),
        (b"cache-control", b"public, max-age=31536000, immutable" if fresh else b"no-cache"),
        (b"content-security-policy", CONTENT_POLICY),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if (exchange.header(b"if-none-match") or "").encode() == file.etag:
        await exchange.respond_empty(304, headers)
    else:
        await exchange.respond(file.body, file.content_type, headers=headers)


def page_routes() -> list[Route]:
    """A route for each file, and for `/`."""
    folder = files("headrace.http") / "page"
    found = _walk(folder) if folder.is_dir() else []
    routes = [Route("GET", file.path, partial(_serve, file), public=True) for file in found]
    routes += [Route("GET", "/", partial(_serve, f), public=True) for f in found if f.path == "/index.html"]
    return routes
