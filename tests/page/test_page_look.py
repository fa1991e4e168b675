"""How the page behaves as a thing on a screen: calm, narrow, dark, readable, from its own origin only."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from headrace.agent.port import RunContext
from headrace.events import RunFinished, TextDelta
from page_stage import Talk, Theatre, ask, becomes, chromium, show, talker
from serving import FunctionAgent

AXE = Path(__file__).parents[2] / "page" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium (apt install chromium)"),
]

WIDE = (
    "一条运行记录由许多记录组成，写进日志之后才会被任何人看见。" * 4
    + "\n\n"
    + "https://example.com/"
    + "averylongpathwithoutanybreak" * 12
    + "\n\n"
    + "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 3
    + "\n\n| a column | another column | a third column | a fourth column | a fifth column |\n|---|---|---|---|---|\n"
    + "| value value | value value | value value | value value | value value |\n\n"
    + "```\n"
    + "x" * 300
    + "\n```\n\n"
    + "`"
    + "inline_code_without_end" * 10
    + "`\n"
)


def done(page: Page) -> "asyncio.Future[None]":
    return asyncio.ensure_future(expect(page.locator(".phase-word").last).to_have_text("Done", timeout=15_000))


@pytest.mark.parametrize(("words", "counted"), [("plain words ", "changes"), ("- some *marked* `words`\n", "writes")])
def test_a_fast_stream_touches_the_document_at_most_45_times_a_second(
    theatre: Theatre, words: str, counted: str
) -> None:
    """Plain text is held to single changes; text that makes new elements, to the moments in which any are made."""

    async def scene() -> None:
        async def fast(context: RunContext) -> RunFinished:
            for _ in range(700):
                context.emit(TextDelta(text=words))
                await asyncio.sleep(0.004)
            return RunFinished(status="completed")

        async with theatre.staged(FunctionAgent(fast)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await expect(page.locator(".prose")).to_be_visible()
            await page.evaluate(
                """() => { window.changes = []; window.writes = [];
                new MutationObserver(records => {
                  window.writes.push(performance.now());
                  for (const _ of records) window.changes.push(performance.now());
                }).observe(document, {subtree: true, childList: true, characterData: true, attributes: true}); }"""
            )
            await becomes(page, "window.writes.length > 40")
            times: list[float] = await page.evaluate(f"window.{counted}")
            busiest = max(sum(1 for t in times if start <= t < start + 1000) for start in times)
            assert busiest <= 45

    theatre.play(scene())


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_scrolls_sideways(theatre: Theatre, width: int) -> None:
    async def scene() -> None:
        async def wide(context: RunContext) -> RunFinished:
            if context.question == "wide":
                context.emit(TextDelta(text=WIDE))
                return RunFinished(status="completed", output=WIDE)
            return await show(context)

        async with theatre.staged(FunctionAgent(wide)) as stage:
            page = await stage.tab(viewport={"width": width, "height": 740})
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert await overflow(page) == []
            for question in ("wide", "question" * 60):
                await ask(page, question)
                await done(page)
                await page.locator(".strip").last.click()
                await expect(page.locator(".waterfall").last).to_be_visible()
                assert await overflow(page) == []
            await page.locator(".sources button").first.click()
            await expect(page.get_by_role("complementary", name="Sources")).to_be_visible()
            assert await overflow(page) == []

    theatre.play(scene())


async def overflow(page: Page) -> list[str]:
    """The elements that make the page wider than its window, besides what scrolls by itself."""
    found: list[str] = await page.evaluate(
        """() => { const wide = document.documentElement.scrollWidth > innerWidth ? ['page'] : [];
        for (const e of document.querySelectorAll('main, .transcript, .column, .passages'))
          if (e.scrollWidth > e.clientWidth) wide.push(e.className || e.tagName);
        return wide; }"""
    )
    return found


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core (npm ci in page/)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(theatre: Theatre, scheme: str) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(show)) as stage:
            visitor = await stage.context(color_scheme=scheme, bypass_csp=True)
            page = await stage.tab(visitor)
            await page.add_script_tag(path=AXE)
            assert await faults(page) == []
            await ask(page, "Please approve: what survives?")
            await expect(page.get_by_role("button", name="Approve")).to_be_visible(timeout=15_000)
            assert await faults(page) == []
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator(".prose")).to_be_visible()
            await done(page)
            await page.locator(".strip").click()
            await page.locator(".sources button").first.click()
            await page.locator("details.thinking summary").click()
            assert await faults(page) == []

    theatre.play(scene(), 90)


async def faults(page: Page) -> list[Any]:
    """What axe calls serious or critical, with the elements."""
    found: list[Any] = await page.evaluate(
        """async () => (await axe.run()).violations.filter(v => ['serious', 'critical'].includes(v.impact))
        .map(v => [v.id, v.nodes.map(n => n.html.slice(0, 120) + ' ' + n.failureSummary)])"""
    )
    return found


def test_the_log_is_busy_while_it_streams_and_only_the_status_speaks(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(3)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await talk.go(1)
            log = page.get_by_role("log")
            await expect(log).to_contain_text("word0")
            await expect(log).to_have_attribute("aria-busy", "true")
            await expect(log).to_have_attribute("aria-live", "off")
            status = page.locator("[role=status][aria-live=polite]")
            await expect(status).to_have_text("Answering.")
            await talk.go(1)
            await expect(log).to_contain_text("word1")
            await expect(status).to_have_text("Answering.")
            await talk.go(1)
            await expect(log).to_have_attribute("aria-busy", "false")
            await expect(status).to_have_text("The answer is complete.")

    theatre.play(scene())


def test_the_view_follows_only_a_reader_who_is_at_the_end(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(4000)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab(viewport={"width": 800, "height": 600})
            await ask(page, "go")
            await talk.go(1000)
            await expect(page.locator(".prose")).to_contain_text("word999")
            await becomes(page, f"({GAP}) <= 1")
            await page.locator(".transcript").hover()
            await page.mouse.wheel(0, -400)
            await becomes(page, f"({GAP}) > 100")
            place = await page.evaluate(TOP)
            await talk.go(1000)
            await expect(page.locator(".prose")).to_contain_text("word1999")
            assert await page.evaluate(TOP) == place
            await page.get_by_role("button", name="Jump to latest").click()
            await becomes(page, f"({GAP}) <= 1")
            await expect(page.get_by_role("button", name="Jump to latest")).to_have_count(0)
            await talk.go(1000)
            await expect(page.locator(".prose")).to_contain_text("word2999")
            await becomes(page, f"({GAP}) <= 1")

    theatre.play(scene())


VIEW = "document.querySelector('.transcript')"
GAP = f"{VIEW}.scrollHeight - {VIEW}.clientHeight - {VIEW}.scrollTop"
TOP = f"{VIEW}.scrollTop"


def test_colours_follow_the_system_until_chosen_and_the_choice_is_kept(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(1, pace=0.01))) as stage:
            page = await stage.tab(color_scheme="dark")
            paper = "getComputedStyle(document.body).backgroundColor"
            button = page.get_by_role("button", name="Colours")
            await expect(button).to_have_text("Auto")
            dark = await page.evaluate(paper)
            await button.click()
            await button.click()
            await expect(button).to_have_text("Light")
            light = await page.evaluate(paper)
            assert light != dark
            await page.reload()
            await expect(button).to_have_text("Light")
            assert await page.evaluate(paper) == light

    theatre.play(scene())


def test_chinese_is_set_as_chinese(theatre: Theatre) -> None:
    async def scene() -> None:
        async def chinese(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="运行由记录组成，*日志*保存每一条。\n\nAn English line."))
            return RunFinished(status="completed")

        async with theatre.staged(FunctionAgent(chinese)) as stage:
            page = await stage.tab()
            await ask(page, "运行是什么？")
            await done(page)
            prose = page.locator(".prose")
            await expect(prose).to_have_attribute("lang", "zh")
            assert await prose.locator("em").evaluate("e => getComputedStyle(e).fontStyle") == "normal"

    theatre.play(scene())
