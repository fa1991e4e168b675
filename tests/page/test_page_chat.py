"""What one does on the page: ask, stop, steer, approve, edit, copy; by mouse, keys and input method."""

import asyncio

import pytest
from playwright.async_api import Page, expect

from harness import until
from headrace.agent.port import RunContext
from headrace.config import AuthConfig
from headrace.errors import EngineUnavailable
from headrace.events import RunFinished, TextDelta, TurnFinished, TurnStarted
from page_stage import ANSWER, Stage, Talk, Theatre, ask, chromium, numbered, show, talker
from serving import FunctionAgent

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium (apt install chromium)"),
]


async def runs_on(stage: Stage) -> int:
    return len(await stage.server.log.runs("default"))


def done(page: Page, word: str = "Done") -> "asyncio.Future[None]":
    return asyncio.ensure_future(expect(page.locator(".phase-word").last).to_have_text(word, timeout=15_000))


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_run_says_so_and_nothing_comes_after(theatre: Theatre, how: str) -> None:
    async def scene() -> None:
        talk = Talk(10_000, pace=0.005)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await expect(page.locator(".prose")).to_contain_text("word20")
            if how == "button":
                await page.get_by_role("button", name="Stop").click()
            else:
                await page.keyboard.press("Escape")
            await expect(page.locator(".phase-word")).to_have_text("Stopped", timeout=1_000)
            await expect(page.get_by_role("status").filter(has_text="Stopped.")).to_have_count(1)
            said = talk.said
            assert await page.locator(".prose").inner_text() == numbered(said).strip()
            await ask(page, "still there?")
            await expect(page.locator(".prose")).to_have_count(2)
            assert await page.locator(".prose").first.inner_text() == numbered(said).strip()

    theatre.play(scene())


def test_enter_sends_shift_enter_breaks_the_line_and_an_input_method_keeps_its_enter(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(1, pace=0.01))) as stage:
            page = await stage.tab()
            box = page.get_by_role("textbox", name="Your question")
            await box.focus()
            devtools = await page.context.new_cdp_session(page)
            await devtools.send("Input.imeSetComposition", {"text": "かな", "selectionStart": 2, "selectionEnd": 2})
            enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
            await devtools.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
            await devtools.send("Input.dispatchKeyEvent", {"type": "keyUp", **enter})
            await devtools.send("Input.insertText", {"text": "仮名"})
            await expect(box).to_have_value("仮名")
            await page.keyboard.press("Shift+Enter")
            await page.keyboard.type("second line")
            await expect(box).to_have_value("仮名\nsecond line")
            assert await runs_on(stage) == 0
            await page.keyboard.press("Enter")
            await expect(page.locator(".question h2")).to_have_text("仮名\nsecond line", use_inner_text=True)
            await done(page)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_enter_of_a_composition_that_only_the_key_event_knows_does_not_send(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(1, pace=0.01))) as stage:
            page = await stage.tab()
            box = page.get_by_role("textbox", name="Your question")
            await box.fill("半角")
            for extra in ({"isComposing": True}, {"keyCode": 229}):
                await box.dispatch_event("keydown", {"key": "Enter", "bubbles": True, **extra})
            await expect(box).to_have_value("半角")
            await box.dispatch_event("keydown", {"key": "Enter", "bubbles": True})
            await done(page)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_what_is_typed_while_it_runs_steers_it_and_its_fate_is_shown(theatre: Theatre) -> None:
    async def scene() -> None:
        talk = Talk(4)
        async with theatre.staged(talker(talk)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await talk.go(1)
            await expect(page.locator(".prose")).to_have_text("word0")
            await page.get_by_role("textbox", name="Steer the running answer").fill("shorter, please")
            await page.get_by_label("now", exact=True).check()
            await page.get_by_role("button", name="Steer").click()
            await expect(page.locator(".steer")).to_contain_text("on its way")
            await talk.go(1)
            await expect(page.locator(".steer")).to_contain_text("shorter, please")
            await expect(page.locator(".steer .badge")).to_have_text("added")
            assert talk.steers == ["shorter, please"]
            await talk.go(1)
            await expect(page.locator(".prose")).to_contain_text("word2")
            await until(lambda: talk.said == 3)
            assert await runs_on(stage) == 1

    theatre.play(scene())


def test_a_steer_that_came_too_late_says_so(theatre: Theatre) -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def deaf(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="I do not listen."))
            await gate.wait()
            return RunFinished(status="completed", output="I do not listen.")

        async with theatre.staged(FunctionAgent(deaf)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await expect(page.locator(".prose")).to_be_visible()
            await page.get_by_role("textbox", name="Steer the running answer").fill("hear me")
            await page.keyboard.press("Enter")
            await expect(page.locator(".steer")).to_contain_text("on its way")
            gate.set()
            await expect(page.locator(".steer .badge")).to_have_text("came too late")

    theatre.play(scene())


def test_every_part_of_an_answer_is_shown(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(show)) as stage:
            page = await stage.tab()
            await ask(page, "Please approve: what survives?")
            await expect(page.locator(".phase-word")).to_have_text("Waits for you", timeout=15_000)
            await page.get_by_role("button", name="Approve").click()
            await done(page)
            await expect(page.get_by_text("You answered “May the answer be sent?”: yes.")).to_be_visible()

            thinking = page.locator("details.thinking")
            await expect(thinking.locator("summary")).to_contain_text("Thought for")
            await expect(thinking.get_by_text("The documents say")).to_be_hidden()
            await thinking.locator("summary").click()
            await expect(thinking.get_by_text("The documents say")).to_be_visible()

            search = page.get_by_role("region", name="Tool search_documents")
            await expect(search).to_contain_text("kill -9 recovery")
            await expect(search).to_contain_text("done")
            await expect(search).to_contain_text("82 ms")
            await expect(search.locator("pre")).to_be_hidden()
            failed = page.get_by_role("region", name="Tool calculator")
            await expect(failed).to_contain_text("Division by zero. Ask for something finite.")

            await page.locator(".prose").get_by_role("button", name="Source 2: Tools and their effects").click()
            passages = page.get_by_role("complementary", name="Sources")
            await expect(passages.locator("[aria-current]")).to_contain_text("A call with a result is never run again.")
            await page.keyboard.press("Escape")
            await expect(passages).to_have_count(0)

            strip = page.locator(".strip")
            await expect(strip).to_contain_text("first word")
            await strip.click()
            rows = page.locator(".rows .name")
            for name in ("intent", "retrieve", "First token", "Thinking", "search_documents()", "Writing"):
                await expect(rows.filter(has_text=name).first).to_be_visible()
            await expect(page.locator(".graph .edge")).to_have_count(2)

    theatre.play(scene())


def test_the_waterfall_of_an_earlier_run_is_read_from_its_records(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(show)) as stage:
            page = await stage.tab()
            await ask(page, "What survives?")
            await done(page)
            await page.reload()
            await done(page)
            await expect(page.locator(".bars rect")).to_have_count(0)
            await page.locator(".strip").click()
            await expect(page.locator(".rows .name").filter(has_text="retrieve")).to_be_visible()

    theatre.play(scene())


def test_code_is_plain_while_it_streams_and_coloured_once_it_is_whole(theatre: Theatre) -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def coder(context: RunContext) -> RunFinished:
            context.emit(TurnStarted(turn=1, model="m", engine="test"))
            context.emit(TextDelta(text="```python\ndef f():\n    return 1\n"))
            await gate.wait()
            context.emit(TextDelta(text="```\n\nThat is **all**.\n"))
            context.emit(TurnFinished(turn=1, finish_reason="stop"))
            return RunFinished(status="completed")

        async with theatre.staged(FunctionAgent(coder)) as stage:
            page = await stage.tab()
            await ask(page, "code")
            code = page.locator(".prose pre")
            await expect(code).to_contain_text("return 1")
            assert await code.locator("span").count() == 0
            gate.set()
            await expect(code.locator(".hl-keyword")).to_have_text(["def", "return"])
            await expect(page.locator(".prose strong")).to_have_text("all")

    theatre.play(scene())


def test_markup_in_an_answer_is_text_and_dangerous_links_are_none(theatre: Theatre) -> None:
    evil = (
        "<img src=x onerror=\"document.title='owned'\"> <script>document.title='owned'</script> "
        "[click](javascript:document.title='owned') [data](data:text/html,owned) ![pixel](https://tracker.test/p.png) "
        "[fine](https://example.com/)"
    )

    async def scene() -> None:
        async def villain(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text=evil))
            return RunFinished(status="completed", output=evil)

        async with theatre.staged(FunctionAgent(villain)) as stage:
            page = await stage.tab()
            elsewhere: list[str] = []
            page.on(
                "request", lambda request: elsewhere.append(request.url) if stage.proxy.url not in request.url else None
            )
            await ask(page, "go")
            await done(page)
            prose = page.locator(".prose")
            await expect(prose).to_contain_text("<img src=x onerror=")
            assert await prose.locator("img, script, iframe").count() == 0
            links = await prose.locator("a").evaluate_all("links => links.map(link => link.href)")
            assert links == ["https://tracker.test/p.png", "https://example.com/"]
            assert "owned" not in await page.title()
            assert elsewhere == []

    theatre.play(scene())


def test_a_run_that_fails_says_what_and_what_to_do_and_can_be_retried(theatre: Theatre) -> None:
    async def scene() -> None:
        broken = True

        async def flaky(context: RunContext) -> RunFinished:
            if broken:
                raise EngineUnavailable("The model server does not answer.", hint="Start it, then retry.")
            context.emit(TextDelta(text="Now it works."))
            return RunFinished(status="completed", output="Now it works.")

        async with theatre.staged(FunctionAgent(flaky)) as stage:
            page = await stage.tab()
            await ask(page, "go")
            await done(page, "Failed")
            await expect(page.locator(".card.bad")).to_contain_text(
                "The model server does not answer. Start it, then retry."
            )
            broken = False
            await page.get_by_role("button", name="Retry").click()
            await expect(page.locator(".prose")).to_have_text("Now it works.")
            await expect(page.locator(".question h2")).to_have_text(["go", "go"])

    theatre.play(scene())


def test_a_refused_question_shows_the_servers_reason(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(1, pace=0.01)), body_bytes=2000) as stage:
            page = await stage.tab()
            await ask(page, "x" * 3000)
            await expect(page.locator(".card.bad")).to_contain_text("payload_too_large")
            assert await runs_on(stage) == 0

    theatre.play(scene())


def test_an_edited_question_runs_again_in_a_thread_of_its_own(theatre: Theatre) -> None:
    async def scene() -> None:
        heard: list[list[str]] = []

        async def echo(context: RunContext) -> RunFinished:
            heard.append([message.content for message in (*context.history, *context.input)])
            said = f"You said {context.question}."
            context.emit(TextDelta(text=said))
            return RunFinished(status="completed", output=said)

        async with theatre.staged(FunctionAgent(echo)) as stage:
            page = await stage.tab()
            await ask(page, "one")
            await done(page)
            await ask(page, "two")
            await expect(page.locator(".prose")).to_have_count(2)
            before = page.url
            await page.locator(".question").last.get_by_role("button", name="Edit").click()
            await page.get_by_role("textbox", name="The question").fill("three")
            await page.get_by_role("button", name="Run again").click()
            await expect(page.locator(".prose").last).to_have_text("You said three.")
            assert heard[-1] == ["one", "You said one.", "three"]
            assert page.url != before
            await page.go_back()
            await expect(page.locator(".question h2")).to_have_text(["one", "two"])

    theatre.play(scene())


def test_an_answer_is_copied_as_it_was_written(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(show)) as stage:
            visitor = await stage.context(permissions=["clipboard-read", "clipboard-write"])
            page = await stage.tab(visitor)
            await ask(page, "What survives?")
            await done(page)
            await page.get_by_role("button", name="Copy the answer").click()
            await expect(page.get_by_role("button", name="Copied the answer")).to_be_visible()
            assert (await page.evaluate("navigator.clipboard.readText()")).strip() == ANSWER.strip()

    theatre.play(scene())


def test_everything_is_reached_by_keyboard_and_focus_is_seen(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(show)) as stage:
            page = await stage.tab()
            await expect(page.get_by_role("textbox", name="Your question")).to_be_focused()
            await page.keyboard.type("What survives?")
            await page.keyboard.press("Enter")
            await done(page)
            await page.locator("body").evaluate("() => document.activeElement.blur()")
            wanted = {
                "New thread",
                "Edit",
                "Where the time went",
                "Thought",
                "Result",
                "Source 1",
                "Copy code",
                "Copy the answer",
                "Ask again",
                "Your question",
            }
            met: set[str] = set()
            for _ in range(60):
                await page.keyboard.press("Tab")
                name, seen = await page.evaluate(
                    """() => { const e = document.activeElement, s = getComputedStyle(e), f = e.closest('.field');
                    const ring = s.outlineStyle !== 'none' || (f && getComputedStyle(f).borderColor !== '');
                    return [[e.ariaLabel, e.title, e === document.body ? '' : e.textContent].join(' '),
                            e === document.body || ring]; }"""
                )
                assert seen, f"no visible focus on {name!r}"
                met |= {each for each in wanted if each in name}
            assert met == wanted

    theatre.play(scene())


def test_threads_are_listed_and_opened_and_a_url_leads_back(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(3, pace=0.01))) as stage:
            visitor = await stage.context()
            page = await stage.tab(visitor)
            await ask(page, "first thread")
            await done(page)
            await page.get_by_role("button", name="New thread").click()
            await ask(page, "second thread")
            await done(page)
            threads = page.get_by_role("navigation", name="Threads").get_by_role("link")
            await expect(threads.locator(".title")).to_have_text(["second thread", "first thread"])
            await threads.filter(has_text="first thread").click()
            await expect(page.locator(".question h2")).to_have_text("first thread")
            await expect(threads.filter(has_text="first thread")).to_have_attribute("aria-current", "page")
            other = await visitor.new_page()
            await other.goto(page.url)
            await expect(other.locator(".question h2")).to_have_text("first thread")

    theatre.play(scene())


def test_a_server_with_keys_is_asked_with_one(theatre: Theatre) -> None:
    async def scene() -> None:
        async with theatre.staged(talker(Talk(3, pace=0.01)), auth=AuthConfig(keys={"me": "sesame"})) as stage:
            page = await stage.tab()
            await page.get_by_label("API key").fill("sesame")
            await page.get_by_role("button", name="Continue").click()
            await ask(page, "go")
            await done(page)
            assert "sesame" not in page.url

    theatre.play(scene())
