"""The client against servers, and things in front of servers, that answer oddly."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from harness import run_async
from headrace.client import AsyncClient, Item
from headrace.client.http import heartbeat_of, retry_after
from headrace.client.problems import error_from
from headrace.client.session import HEARTBEAT_S
from headrace.errors import HeadraceError, ProtocolBroken, RequestError, ServerUnreachable, StaleFence, UnknownRun
from headrace.events import Event, Record, RunFinished, TextDelta
from headrace.wire.codec import encode_record

EVENTS: list[Event] = [TextDelta(text="a"), TextDelta(text="b"), RunFinished(status="completed", output="ab")]
FRAMES = [encode_record(seq, 1000 + seq, event) for seq, event in enumerate(EVENTS, 1)]


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def stream(*frames: bytes) -> bytes:
    return response("200 OK", b"retry: 1\n" + b"".join(frames), "Content-Type: text/event-stream")


class Scripted:
    """Answers each request with the next of `responses`, and keeps what was asked."""

    def __init__(self, responses: Sequence[bytes]) -> None:
        self._responses = list(responses)
        self.requests: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")), 0)
        await reader.readexactly(length)
        self.requests.append(head)
        if self._responses:
            writer.write(self._responses.pop(0))
        writer.close()


@asynccontextmanager
async def answering(*responses: bytes, patience: float = 5.0) -> AsyncGenerator[tuple[AsyncClient, Scripted], None]:
    scripted = Scripted(responses)
    server = await asyncio.start_server(scripted, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with AsyncClient(url, patience=patience) as client:
            yield client, scripted
    finally:
        server.close()


def header(request: str, name: str) -> str | None:
    found = [line.partition(": ")[2] for line in request.split("\r\n") if line.lower().startswith(f"{name}: ")]
    return found[0] if found else None


def followed(*responses: bytes) -> tuple[list[Item], list[str | None]]:
    """What a client gets of a run from these answers, and the cursors that it came with."""

    async def scenario() -> tuple[list[Item], list[str | None]]:
        async with answering(*responses) as (client, scripted):
            items = [item async for item in client.run("r").events()]
            return items, [header(request, "last-event-id") for request in scripted.requests]

    return run_async(scenario())


def seqs(items: list[Item]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Record)]


def test_a_start_that_is_sent_away_or_cut_is_asked_again_with_the_same_key() -> None:
    async def scenario() -> None:
        started = b'{"state":{"run_id":"r","status":"running"}}'
        later = response("503 Busy", b"", "Retry-After: 0")
        cut = b"HTTP/1.1 202 Accepted\r\nContent-Length: 24\r\n\r\n{"
        async with answering(later, cut, b"", response("202 Accepted", started)) as (client, scripted):
            assert (await client.start("hi")).id == "r"
            assert len({header(request, "idempotency-key") for request in scripted.requests}) == 1
            assert len(scripted.requests) == 4

    run_async(scenario())


def test_a_steer_whose_answer_was_lost_is_sent_again_with_the_same_key() -> None:
    async def scenario() -> None:
        async with answering(b"", response("202 Accepted", b'{"steer_id":"s"}')) as (client, scripted):
            assert await client.run("r").steer("shorter") == "s"
            first, again = [header(request, "idempotency-key") for request in scripted.requests]
            assert first
            assert first == again

    run_async(scenario())


def test_a_stream_that_leaves_a_record_out_is_followed_again_from_the_last_good_one() -> None:
    items, cursors = followed(stream(FRAMES[0], FRAMES[2]), stream(*FRAMES[1:]))
    assert seqs(items) == [1, 2, 3]
    assert cursors == ["0", "1"]


def test_a_stream_that_leaves_it_out_again_is_given_up() -> None:
    with pytest.raises(ProtocolBroken):
        followed(stream(FRAMES[0], FRAMES[2]), stream(FRAMES[2]))


def test_a_stream_that_repeats_itself_gives_each_record_once() -> None:
    items, _ = followed(stream(FRAMES[0], FRAMES[0], FRAMES[1]), stream(*FRAMES))
    assert seqs(items) == [1, 2, 3]


def test_a_torn_last_event_is_not_taken() -> None:
    items, cursors = followed(stream(FRAMES[0], FRAMES[1][:-1]), stream(*FRAMES[1:]))
    assert seqs(items) == [1, 2, 3]
    assert cursors == ["0", "1"]


@pytest.mark.parametrize("status", ["429 Slow down", "502 Bad Gateway", "503 Draining", "504 Timeout"])
def test_a_stream_that_is_sent_away_comes_back(status: str) -> None:
    items, cursors = followed(stream(FRAMES[0]), response(status, b"<html>", "Retry-After: 0"), stream(*FRAMES[1:]))
    assert seqs(items) == [1, 2, 3]
    assert cursors == ["0", "1", "1"]


def test_204_ends_a_run() -> None:
    assert followed(stream(FRAMES[0]), response("204 No Content"))[0] == [
        Record(run_id="r", seq=1, ts=1001, event=EVENTS[0])  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("frame", [b"id: x\nevent: text.delta\ndata: {}\n\n", b"id: 1\nevent: text.delta\ndata: {\n\n"])
def test_a_frame_that_cannot_be_read_is_a_broken_protocol(frame: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        followed(stream(frame))


def test_an_event_without_an_id_is_no_record() -> None:
    assert seqs(followed(stream(b"event: hello\ndata: {}\n\n", *FRAMES))[0]) == [1, 2, 3]


def test_an_answer_that_is_not_ours_says_so() -> None:
    async def scenario() -> None:
        async with answering(response("200 OK", b"<html>hi</html>")) as (client, _):
            with pytest.raises(ProtocolBroken) as broken:
                await client.runs()
            assert broken.value.hint == "Is this a Headrace server?"

    run_async(scenario())


def test_a_server_that_only_sends_away_is_given_up_with_what_it_said() -> None:
    async def scenario() -> None:
        busy = response("503 Busy", b'{"code":"draining","detail":"Going."}')
        async with answering(busy, patience=0) as (client, _):
            with pytest.raises(ServerUnreachable, match=r"Going\."):
                await client.runs()

    run_async(scenario())


def test_a_problem_is_the_error_of_its_code() -> None:
    error = error_from(404, b'{"code":"unknown_run","detail":"No.","hint":"Look.","status":404}')
    assert type(error) is UnknownRun
    assert (error.message, error.hint) == ("No.", "Look.")
    assert type(error_from(409, b'{"code":"stale_fence","detail":"No."}')) is StaleFence


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"<html>nginx</html>", RequestError),
        (400, b"", RequestError),
        (418, b'{"code":"teapot"}', RequestError),
        (500, b"\xff", HeadraceError),
        (500, b'{"code":"mystery","detail":"x"}', HeadraceError),
    ],
)
def test_an_error_that_nobody_knows_still_says_what_came(status: int, body: bytes, kind: type[Exception]) -> None:
    error = error_from(status, body)
    assert type(error) is kind
    assert error.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("3", 3.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", 0.0), ("-1", 0.0)],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float) -> None:
    assert retry_after({"Retry-After": text}) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5", 0.5), ("soon", HEARTBEAT_S), ("0", HEARTBEAT_S), ("nan", HEARTBEAT_S), ("inf", HEARTBEAT_S)],
)
def test_an_odd_heartbeat_interval_is_taken_for_the_usual_one(text: str, seconds: float) -> None:
    assert heartbeat_of({"X-Heartbeat-Interval": text}) == seconds
