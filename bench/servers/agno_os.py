"""Agno AgentOS, as its documentation sets it up: an agent, SQLite as its database, resumable background streaming.

Runs in a virtual environment of its own (`python -m bench.rivals` makes it). Only its telemetry is switched off, and
uvicorn runs as for everybody else.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from agno.agent import Agent  # type: ignore[import-not-found]
from agno.db.sqlite import SqliteDb  # type: ignore[import-not-found]
from agno.models.base import Model  # type: ignore[import-not-found]
from agno.models.response import ModelResponse  # type: ignore[import-not-found]
from agno.os import AgentOS  # type: ignore[import-not-found]

from bench.model import generate, parse_plan
from bench.servers.arguments import server_arguments


def _delta(token: str) -> Any:
    return ModelResponse(content=token)


@dataclass
class PacedModel(Model):  # type: ignore[misc]
    """Agno's port around the shared fake model."""

    id: str = "paced"

    def ainvoke_stream(self, messages: list[Any], **_: Any) -> AsyncIterator[Any]:
        return generate(parse_plan(messages[-1].content), _delta)

    async def ainvoke(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the benchmark only streams")

    def invoke(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the benchmark only streams")

    def invoke_stream(self, *_: Any, **__: Any) -> Iterator[Any]:
        raise NotImplementedError("the benchmark only streams")

    def _parse_provider_response(self, response: Any, **_: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def main() -> None:
    arguments = server_arguments()
    database = SqliteDb(db_file=f"{arguments.data}/agno.db")
    agent = Agent(id="bench", name="bench", model=PacedModel(), db=database, telemetry=False)
    app = AgentOS(agents=[agent], db=database, telemetry=False).get_app()
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
