"""The page on a link that is cut, swallowed, slow or gone: the text once and whole."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from playwright.async_api import Page, expect

from harness import until
from page_stage import Stage, Talk, Theatre, ask, chromium, numbered, talker

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium (apt install chromium)"),
]


def answer(page: Page, last: int) -> "asyncio.Future[None]":
    """Wait until the page shows words 0 to `last` - 1 and nothing else."""
    return asyncio.ensure_future(expect(page.locator(".prose")).to_have_text(numbered(last).strip(), timeout=15_000))


async def runs_on(stage: Stage) -> int:
    return len(await stage.server.log.runs("default"))


def test_a_connection_reset_again_and_again_loses_and_doubles_nothing(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(60)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            for words in range(5, 61, 5):
                await talk.go(5)
                await answer(page, words)
                stage.proxy.cut()
            await expect(page.locator(".phase-word")).to_have_text("Done", timeout=15_000)
            await answer(page, 60)
            assert await runs_on(stage) == 1

    theatre.play(scene(), 90)


def test_a_question_cut_before_its_answer_began_is_asked_once(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(5, pace=0.01)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await page.wait_for_load_state("networkidle")
            stage.proxy.cut()
            stage.proxy.cuts.extend([1, 20])  # the response dies in its status line, then in its headers
            await ask(page, "go")
            await answer(page, 5)
            assert await runs_on(stage) == 1
            assert not stage.proxy.cuts

    theatre.play(scene())


def test_a_half_open_link_is_noticed_by_its_silence_and_the_banner_goes_when_it_is_back(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(20)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await talk.go(5)
            await answer(page, 5)
            banner = page.get_by_text("Connection lost")
            await expect(banner).to_have_count(0)
            stage.proxy.hole = True
            await talk.go(5)
            await expect(banner).to_be_visible(timeout=15_000)
            stage.proxy.hole = False
            await talk.go(5)
            await answer(page, 15)
            await expect(banner).to_have_count(0)
            await talk.go(5)
            await answer(page, 20)

    theatre.play(scene(), 90)


def test_heartbeats_keep_a_silent_link(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(2)
        async with theatre.staged(talker(talk), heartbeat=0.2) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await talk.go(1)
            await answer(page, 1)
            beats = 0

            def passing(forward: Callable[[bytes], bool], data: bytes) -> bool:
                nonlocal beats
                beats += data.count(b": hb\n")
                return forward(data)

            for link in stage.proxy.links:
                link.forward_down = partial(passing, link.forward_down)  # type: ignore[method-assign]
            await until(lambda: beats >= 10)  # four times as long as a silent link may live
            await talk.go(1)
            await answer(page, 2)
            gets = await page.evaluate(
                "performance.getEntriesByType('resource').filter(e => /events/.test(e.name)).length"
            )
            assert gets == 0, "the stream of the POST was given up although it lived"

    theatre.play(scene())


def test_a_reload_in_the_middle_shows_the_text_once_and_goes_on(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(30)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            for words in (10, 20):
                await talk.go(10)
                await answer(page, words)
                await page.reload()
                await answer(page, words)
            await talk.go(10)
            await answer(page, 30)
            await expect(page.locator(".question h2")).to_have_text("go")
            assert await runs_on(stage) == 1

    theatre.play(scene(), 90)


def test_a_reload_before_the_server_has_answered_asks_once(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(5, pace=0.01)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await page.wait_for_load_state("networkidle")
            stage.proxy.cut()
            stage.proxy.refusing = True
            await ask(page, "go")
            await expect(page.locator(".question h2")).to_have_text("go")
            url = page.url
            stage.proxy.refusing = False
            await page.goto(url)
            await answer(page, 5)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_a_page_that_slept_through_a_cut_wakes_up_whole(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(20)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await talk.go(5)
            await answer(page, 5)
            devtools = await page.context.new_cdp_session(page)
            await devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
            stage.proxy.hole = True
            await talk.go(15)
            await until(lambda: talk.said == 20)
            stage.proxy.cut()
            stage.proxy.hole = False
            await devtools.send("Page.setWebLifecycleState", {"state": "active"})
            await answer(page, 20)
            await expect(page.locator(".phase-word")).to_have_text("Done")

    theatre.play(scene())


def test_an_answer_that_ended_while_nobody_looked_is_there_and_says_when(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(10)
        async with theatre.staged(talker(talk)) as stage:
            visitor = await stage.context()
            page = await stage.tab(visitor)
            await ask(page, "go")
            await talk.go(5)
            await answer(page, 5)
            url = page.url
            await page.close()
            await talk.go(5)
            await until(lambda: talk.said == 10)
            again = await visitor.new_page()
            await again.goto(url)
            await answer(again, 10)
            await expect(again.get_by_text("Finished while you were away, at")).to_be_visible()
            await again.reload()
            await answer(again, 10)
            await expect(again.get_by_text("Finished while you were away")).to_have_count(0)

    theatre.play(scene())


def test_two_tabs_on_one_thread_are_both_live_and_a_stop_in_one_shows_in_the_other(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(100)
        async with theatre.staged(talker(talk)) as stage:
            visitor = await stage.context()
            first = await stage.tab(visitor)
            await ask(first, "go")
            await talk.go(5)
            await answer(first, 5)
            second = await visitor.new_page()
            await second.goto(first.url)
            await answer(second, 5)
            await talk.go(5)
            await asyncio.gather(answer(first, 10), answer(second, 10))
            await second.get_by_role("button", name="Stop").click()
            for page in (first, second):
                await expect(page.locator(".phase-word")).to_have_text("Stopped")
            await ask(first, "and again")
            await expect(second.locator(".question h2")).to_have_text(["go", "and again"])
            await expect(second.locator(".phase-word").last).to_have_text("Writing")

    theatre.play(scene())


def test_a_run_started_elsewhere_appears_by_itself(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(5, pace=0.01)
        async with theatre.staged(talker(talk)) as stage:
            here = await stage.tab()
            await ask(here, "go")
            await answer(here, 5)
            elsewhere = await stage.tab(path="/" + here.url.partition("/?")[2].join(["?", ""]))
            await answer(elsewhere, 5)
            await ask(elsewhere, "more")
            await expect(here.locator(".question h2")).to_have_text(["go", "more"], timeout=15_000)

    theatre.play(scene())


def test_stop_is_final_even_when_the_stream_does_not_say_so(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(1000, pace=0.01)
        async with theatre.staged(talker(talk), heartbeat=30) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await expect(page.locator(".prose")).to_contain_text("word10")
            before = {link: link.down for link in stage.proxy.links}
            await expect(page.locator(".prose")).to_contain_text("word20")
            stream = max(before, key=lambda link: link.down - before[link])
            stream.forward_down = lambda data: True  # type: ignore[method-assign]
            await page.keyboard.press("Escape")
            await expect(page.locator(".phase-word")).to_have_text("Stopped")
            said = (await page.locator(".prose").inner_text()).split()
            assert said == numbered(talk.said).split()[: len(said)]
            assert len(said) == talk.said

    theatre.play(scene())


def test_stop_gets_through_when_every_open_connection_is_dead(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(100_000, pace=0.01)
        async with theatre.staged(talker(talk), heartbeat=30) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await expect(page.locator(".prose")).to_contain_text("word10")
            for link in stage.proxy.links:
                link.forward_down = lambda data: True  # type: ignore[method-assign]
            await page.keyboard.press("Escape")
            await expect(page.locator(".phase-word")).to_have_text("Stopping")
            await expect(page.locator(".phase-word")).to_have_text("Stopped", timeout=20_000)
            assert (await page.locator(".prose").inner_text()).split() == numbered(talk.said).split()

    theatre.play(scene())


def test_a_hidden_page_gives_its_connection_back_and_catches_up_when_it_is_shown(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(10)
        async with theatre.staged(talker(talk)) as stage:
            visitor = await stage.context()
            await visitor.add_init_script(
                "Object.defineProperty(document, 'hidden', {get: () => window.away === true, configurable: true})"
            )
            page = await stage.tab(visitor)
            await page.clock.install()
            await ask(page, "go")
            await talk.go(5)
            await answer(page, 5)
            turn = "away => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
            await page.evaluate(turn, True)
            await page.clock.fast_forward(11_000)
            await talk.go(5)
            await until(lambda: talk.said == 10)
            await page.clock.fast_forward(5_000)
            await answer(page, 5)
            await page.evaluate(turn, False)
            await page.clock.fast_forward(1_000)
            await answer(page, 10)
            await expect(page.get_by_text("Finished while you were away, at")).to_be_visible()

    theatre.play(scene())


def test_a_question_asked_without_a_connection_is_sent_once_there_is_one(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(5, pace=0.01)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await page.wait_for_load_state("networkidle")
            stage.proxy.refusing = True
            stage.proxy.cut()
            await ask(page, "go")
            await expect(page.get_by_text("The question is sent as soon as there is one.")).to_be_visible()
            stage.proxy.refusing = False
            await answer(page, 5)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_a_question_that_was_never_sent_can_be_taken_back(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(5, pace=0.01))) as stage:
            page = await stage.tab()
            await page.wait_for_load_state("networkidle")
            stage.proxy.refusing = True
            stage.proxy.cut()
            await ask(page, "go")
            await expect(page.get_by_text("The question is sent as soon as there is one.")).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.locator(".card.bad")).to_contain_text("The question was not sent.")
            stage.proxy.refusing = False
            await page.reload()
            await ask(page, "another")
            await answer(page, 5)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_a_thread_opened_while_the_server_is_away_appears_when_it_is_back(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(5, pace=0.01))) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await answer(page, 5)
            await page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
            await page.reload()
            await expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
            await page.unroute("**/v1/**")
            await answer(page, 5)

    theatre.play(scene())
