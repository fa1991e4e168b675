"""Where `langgraph dev` keeps its checkpoints. Runs in LangGraph's environment.

By itself the development server has them in memory and pickles them every ten seconds. Given a checkpointer of your
own it writes each at once: with SQLite a finished step survives `kill -9`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # type: ignore[import-not-found]


@asynccontextmanager
async def saver() -> AsyncIterator[Any]:
    async with AsyncSqliteSaver.from_conn_string("checkpoints.db") as opened:
        await opened.setup()
        yield opened
