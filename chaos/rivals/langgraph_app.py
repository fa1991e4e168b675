"""The agent that `langgraph dev` serves. Runs in LangGraph's environment."""

import asyncio
import os

from langchain.agents import create_agent  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]

from chaos.ledger import write_down


@tool  # type: ignore[untyped-decorator]
async def look(label: str, ms: int) -> str:
    """Look something up."""
    return await _work("look", label, ms)


@tool  # type: ignore[untyped-decorator]
async def put(label: str, ms: int) -> str:
    """Write a value."""
    return await _work("put", label, ms)


@tool  # type: ignore[untyped-decorator]
async def send(label: str, ms: int) -> str:
    """Send a mail."""
    return await _work("send", label, ms)


async def _work(name: str, label: str, ms: int) -> str:
    await asyncio.to_thread(write_down, name, label, label)  # the server forbids blocking calls in its loop
    await asyncio.sleep(ms / 1000)
    return f"{name} {label} is done 完成"


# named for its process, so that what it says tells who worked
_model = ChatOpenAI(
    model=f"scripted-{os.getpid()}", api_key="none", base_url=os.environ["CHAOS_MODEL"], streaming=True, max_retries=0
)
agent = create_agent(_model, [look, put, send])
