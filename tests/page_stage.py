"""The page in a real Chromium, a real server behind it, and a link between them that breaks on purpose."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from headrace.agent.app import App
from headrace.agent.port import RunContext
from headrace.config import AuthConfig
from headrace.events import (
    InputRequested,
    NodeFinished,
    NodeStarted,
    RunFinished,
    SourceCited,
    TextDelta,
    ThinkingDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolFault,
    ToolProgress,
    ToolResult,
    TurnFinished,
    TurnStarted,
)
from headrace.server import Server
from proxy import Proxy
from serving import FunctionAgent, config

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

ANSWER = """A run survives because it lives in the **log**, not in the connection [1]. When a server is killed, \
the next one reads what was written and goes on after the last record.

- Finished tools never run again [2].
- A tool marked `once` whose result was lost is reported as *unknown*, never repeated in silence.

```python
async for record in client.follow(run_id, after=12):
    print(record.seq, record.event)  # gapless, once each
```

So a reader that comes back after record 12 gets record 13 next.
"""


def chromium() -> str | None:
    """Where the browser is, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Stage:
    """What a test of the page has at hand. Pages reach the server through `proxy` only."""

    def __init__(self, server: Server, proxy: Proxy, browser: Browser) -> None:
        self.server = server
        self.proxy = proxy
        self._browser = browser
        self.errors: list[str] = []
        self._visitors: list[BrowserContext] = []

    async def leave(self) -> None:
        for visitor in self._visitors:
            await visitor.close()

    async def context(self, **options: Any) -> BrowserContext:
        """A visitor: storage of its own. A test that has one may open several tabs in it."""
        options.setdefault("viewport", {"width": 1280, "height": 860})
        visitor = await self._browser.new_context(**options)
        self._visitors.append(visitor)
        return visitor

    async def tab(self, context: BrowserContext | None = None, path: str = "/", **options: Any) -> Page:
        page = await (context or await self.context(**options)).new_page()
        page.on("pageerror", lambda error: self.errors.append(f"{error}"))
        page.on("console", self._heard)
        await page.goto(self.proxy.url + path)
        return page

    def _heard(self, message: Any) -> None:
        """A refused inline script or style, or a request to somewhere else, is said on the console only."""
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)


class Theatre:
    """One browser and one event loop for all tests of a session: starting either costs more than most tests."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._loop.run(self._open())

    async def _open(self) -> None:
        playwright = await self._stack.enter_async_context(async_playwright())
        self._browser = await playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        self._stack.push_async_callback(self._browser.close)

    def close(self) -> None:
        self._loop.run(self._stack.aclose())
        self._loop.close()

    def play(self, scene: Coroutine[Any, Any, None], deadline: float = 60.0) -> None:
        """Run a test's scene; one that hangs fails after `deadline` seconds."""

        async def bounded() -> None:
            async with asyncio.timeout(deadline):
                await scene

        self._loop.run(bounded())

    @asynccontextmanager
    async def staged(
        self,
        *agents: FunctionAgent,
        heartbeat: float = 0.4,
        auth: AuthConfig | None = None,
        body_bytes: int = 1_000_000,
    ) -> AsyncIterator[Stage]:
        """A server and a link to it. Leaving it fails if any page reported an error of its own."""
        settings = config(server={"heartbeat": heartbeat}, limits={"body_bytes": body_bytes}, auth=auth)
        async with Server(App(*agents), settings) as server, Proxy(server.port) as proxy:
            stage = Stage(server, proxy, self._browser)
            try:
                yield stage
            finally:
                await stage.leave()
            assert stage.errors == []


async def ask(page: Page, question: str) -> None:
    await page.get_by_role("textbox", name="Your question").fill(question)
    await page.keyboard.press("Enter")


async def becomes(page: Page, condition: str) -> None:
    """Wait until the expression is true in the page. (The page's own policy forbids Playwright's way, an eval.)"""
    async with asyncio.timeout(10):
        while not await page.evaluate(condition):  # noqa: ASYNC110 - a browser sets no event of ours
            await asyncio.sleep(0.01)


def numbered(count: int) -> str:
    """A text in which a word that is missing or doubled shows."""
    return "".join(f"word{i} " for i in range(count))


class Talk:
    """Says numbered words, each when `pace` seconds have passed or the test calls `go`; ends after `count`."""

    def __init__(self, count: int, *, pace: float | None = None) -> None:
        self.count = count
        self.pace = pace
        self.said = 0
        self.steers: list[str] = []
        self._allowed = 0
        self._more = asyncio.Condition()

    async def go(self, words: int) -> None:
        """Allow so many words more."""
        async with self._more:
            self._allowed += words
            self._more.notify_all()

    async def __call__(self, context: RunContext) -> RunFinished:
        context.emit(TurnStarted(turn=1, model="m", engine="scripted"))
        for number in range(self.count):
            await self._may_speak(number)
            context.emit(TextDelta(text=f"word{number} "))
            self.said = number + 1
            self.steers += [message.content for message in context.take_steers()]
        context.emit(TurnFinished(turn=1, finish_reason="stop"))
        return RunFinished(status="completed", output=numbered(self.count))

    async def _may_speak(self, number: int) -> None:
        if self.pace is not None:
            await asyncio.sleep(self.pace)
            return
        async with self._more:
            await self._more.wait_for(lambda: self._allowed > number)


def talker(talk: Callable[[RunContext], Awaitable[RunFinished]]) -> FunctionAgent:
    return FunctionAgent(talk)


async def show(context: RunContext) -> RunFinished:
    """Everything an answer can be made of: workflow, thinking, tools, an approval, sources, code."""
    emit = context.emit
    emit(NodeStarted(node="intent"))
    emit(NodeStarted(node="retrieve"))
    await asyncio.sleep(0.012)
    emit(NodeFinished(node="intent", status="completed", ms=12))
    await asyncio.sleep(0.04)
    emit(NodeFinished(node="retrieve", status="completed", ms=52))
    for source in SOURCES:
        emit(source)
    emit(NodeStarted(node="answer", needs=("intent", "retrieve")))
    emit(TurnStarted(turn=1, model="smollm2-135m", engine="llamacpp"))
    await asyncio.sleep(0.15)
    for word in ["The", "question", "is", "about", "recovery.", "The", "documents", "say", "what", "survives."]:
        emit(ThinkingDelta(text=word + " "))
        await asyncio.sleep(0.01)
    emit(ToolCallStarted(call_id="c1", name="search_documents", turn=1))
    await asyncio.sleep(0.02)
    emit(ToolCallEnded(call_id="c1", arguments={"query": "kill -9 recovery", "limit": 3}))
    emit(ToolCallStarted(call_id="c2", name="calculator", turn=1))
    emit(ToolCallEnded(call_id="c2", arguments={"expression": "1/0"}))
    emit(TurnFinished(turn=1, finish_reason="tool_calls"))
    emit(ToolProgress(call_id="c1", data={"percent": 40}))
    emit(
        ToolResult(
            call_id="c2",
            error=ToolFault(code="tool_failed", message="Division by zero.", hint="Ask for something finite."),
            ms=1.2,
        )
    )
    await asyncio.sleep(0.08)
    emit(ToolResult(call_id="c1", result=[{"title": "Durability", "score": 0.83}], ms=81.5))
    if "approve" in context.question:
        await context.ask(InputRequested(input_id="i1", kind="approval", prompt="May the answer be sent?"))
    emit(TurnStarted(turn=2, model="smollm2-135m", engine="llamacpp"))
    await asyncio.sleep(0.1)
    for word in ANSWER.split(" "):
        emit(TextDelta(text=word + " "))
        await asyncio.sleep(0.012)
    emit(TurnFinished(turn=2, finish_reason="stop"))
    emit(NodeFinished(node="answer", status="completed", ms=1900))
    return RunFinished(status="completed", output=ANSWER)


SOURCES = (
    SourceCited(
        id="s1",
        title="Durability",
        path="docs/log.md",
        span=(1204, 1411),
        score=0.83,
        text="A record is durable before anybody sees it. After kill -9 the next process reads the journal up to the "
        "last whole record and goes on from there.",
    ),
    SourceCited(
        id="s2",
        title="Tools and their effects",
        path="docs/tools.md",
        span=(310, 502),
        score=0.71,
        text="A call with a result is never run again. A call without one follows its effect: none and idempotent run "
        "again with the same call_id, once becomes a result that says the outcome is unknown.",
    ),
)
