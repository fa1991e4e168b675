"""What a decent engineer writes in an afternoon: Starlette's StreamingResponse on uvicorn, uvloop and httptools.

No log, no resume, no cancellation; events encoded one by one with msgspec. Uvicorn runs as Headrace runs it.
"""

from collections.abc import AsyncIterator

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.model import Plan, generate, parse_plan
from bench.servers.arguments import server_arguments
from bench.servers.frames import encode_delta


async def events(plan: Plan) -> AsyncIterator[bytes]:
    seq = 0
    async for token in generate(plan, str):
        seq += 1
        yield encode_delta(seq, token)


async def start(request: Request) -> Response:
    plan = parse_plan(msgspec.json.decode(await request.body())["input"])
    return StreamingResponse(events(plan), media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/v1/runs", start, methods=["POST"]), Route("/healthz", healthz)])


def main() -> None:
    port = server_arguments().port
    uvicorn.run(
        app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
