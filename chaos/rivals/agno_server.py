"""An instance of Agno AgentOS, set up to survive: sessions and a durable queue in Postgres, event streams in Redis.

`QueueConfig(durable=True, max_attempts=…)` is what its documentation names for runs that outlive their worker. All
numbers are the quickest it allows: a lease of three seconds, no delay before a retry; and, as for Headrace, no limit on
runs at a time and more attempts than a campaign has kills. Runs in Agno's environment.
"""

import argparse
import asyncio
import os

import uvicorn
from agno.agent import Agent  # type: ignore[import-not-found]
from agno.db.postgres import PostgresDb  # type: ignore[import-not-found]
from agno.models.openai.like import OpenAILike  # type: ignore[import-not-found]
from agno.os import AgentOS, QueueConfig  # type: ignore[import-not-found]

from chaos.ledger import write_down


async def look(label: str, ms: int) -> str:
    """Look something up."""
    return await _work("look", label, ms)


async def put(label: str, ms: int) -> str:
    """Write a value."""
    return await _work("put", label, ms)


async def send(label: str, ms: int) -> str:
    """Send a mail."""
    return await _work("send", label, ms)


async def _work(name: str, label: str, ms: int) -> str:
    write_down(name, label, label)
    await asyncio.sleep(ms / 1000)
    return f"{name} {label} is done 完成"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--port", "--database", "--redis", "--model"):
        parser.add_argument(flag, required=True)
    arguments = parser.parse_args()
    database = PostgresDb(db_url=arguments.database)
    agent = Agent(
        id="chaos",
        name="chaos",
        # named for its process, so that the events tell who worked
        model=OpenAILike(id=f"scripted-{os.getpid()}", api_key="none", base_url=arguments.model),
        tools=[look, put, send],
        db=database,
        store_events=True,
        checkpoint="tool-batch",
        telemetry=False,
    )
    queue = QueueConfig(
        durable=True,
        redis=arguments.redis,
        max_attempts=1000,
        max_concurrency=0,
        retry_delay_seconds=0,
        poll_interval=0.2,
        lock_grace_seconds=3,
        stop_timeout_seconds=2,
    )
    app = AgentOS(agents=[agent], db=database, queue=queue, telemetry=False).get_app()
    uvicorn.run(app, host="127.0.0.1", port=int(arguments.port), access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
