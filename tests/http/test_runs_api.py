import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness import run_async, until
from headrace.agent.port import RunContext
from headrace.config import AuthConfig
from headrace.events import InputRequested, RunFinished, SteerReceived, TextDelta
from serving import Caller, FunctionAgent, Gate, config, count, parse, read_until, running

COUNT = FunctionAgent(count)


def test_a_stream_begins_with_its_headers_and_holds_every_record_once() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            body = msgspec.json.encode({"input": "3"})
            headers = {"accept": "text/event-stream"}
            async with caller.http.post(caller.server.url + "/v1/runs", data=body, headers=headers) as answer:
                assert answer.status == 200
                assert answer.headers["location"] == f"/v1/runs/{answer.headers['x-run-id']}"
                assert answer.headers["x-accel-buffering"] == "no"
                assert "no-transform" in answer.headers["cache-control"]
                raw = await answer.read()
            assert b"\r" not in raw
            events = parse(raw)
            assert events[0]["event"] == "run.started"
            assert events[-1] == {**events[-1], "event": "run.finished", "status": "completed"}
            assert "".join(e["text"] for e in events if e["event"] == "text.delta") == "w0 w1 w2 "
            covered = [seq for e in events for seq in range(e["id"] - e.get("n", 1) + 1, e["id"] + 1)]
            assert covered == list(range(1, events[-1]["id"] + 1))

    run_async(scenario())


def test_headers_leave_before_the_first_token_and_heartbeats_follow() -> None:
    async def scenario() -> None:
        gate = Gate()

        async def silent(context: RunContext) -> RunFinished:
            await gate.open.wait()
            return RunFinished(status="completed")

        async with running(FunctionAgent(silent)) as caller:
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                assert answer.headers["x-heartbeat-interval"] == "0.2"
                raw = await read_until(answer, b": hb\n: hb\n")  # one newline: no empty message for anybody
                assert b": hb\n\n" not in raw
                gate.open.set()
                assert parse(await answer.read())[-1]["event"] == "run.finished"

    run_async(scenario())


@pytest.mark.parametrize("cursor", [0, 1, 5, 11, 12])
@pytest.mark.parametrize("way", ["header", "query"])
def test_a_resume_gives_exactly_the_later_records(cursor: int, way: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = (await caller.finished("10"))["run_id"]
            path = f"/v1/runs/{run_id}/events?chunk=token"
            if way == "header":
                events = await caller.events(path, last_event_id=str(cursor))
            else:
                events = await caller.events(f"{path}&after={cursor}")
            assert [e["id"] for e in events] == list(range(cursor + 1, 15))

    run_async(scenario())


def test_the_header_wins_over_the_query_because_an_event_source_repeats_its_url() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = (await caller.finished("10"))["run_id"]
            events = await caller.events(f"/v1/runs/{run_id}/events?after=2&chunk=token", last_event_id="9")
            assert events[0]["id"] == 10

    run_async(scenario())


def test_a_finished_run_with_nothing_left_answers_204() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            state = await caller.finished("1")
            assert (await caller.get(f"/v1/runs/{state['run_id']}/events", last_event_id=str(state["seq"])))[0] == 204

    run_async(scenario())


@pytest.mark.parametrize("cursor", ["abc", "1.5", "-2", "9999999999", str(2**70), "１２", "1 2"])
def test_a_cursor_that_is_none_is_refused_and_says_so(cursor: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = (await caller.finished("1"))["run_id"]
            status, problem = await caller.get(f"/v1/runs/{run_id}/events", last_event_id=cursor)
            assert status == 400
            assert problem["code"] == "invalid_cursor"

    run_async(scenario())


@pytest.mark.parametrize("cursor", ["", "-1"])
def test_an_empty_cursor_and_minus_one_mean_from_the_start(cursor: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = (await caller.finished("1"))["run_id"]
            events = await caller.events(f"/v1/runs/{run_id}/events", last_event_id=cursor)
            assert events[0]["id"] == 1

    run_async(scenario())


def test_ten_followers_of_one_run_each_get_the_same_complete_sequence() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            followers = [asyncio.create_task(caller.events(f"/v1/runs/{run_id}/events?chunk=token")) for _ in range(10)]
            await gate.entered.wait()
            gate.open.set()
            sequences = [await follower for follower in followers]
            assert all(sequence == sequences[0] for sequence in sequences)
            assert [e["event"] for e in sequences[0]] == ["run.started", "text.delta", "text.delta", "run.finished"]

    run_async(scenario())


def test_a_disconnect_never_stops_a_run() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"before")
            gate.open.set()
            events = await caller.events(f"/v1/runs/{run_id}/events", last_event_id="2")
            assert [e.get("text") for e in events] == ["after", None]
            assert not gate.cancelled

    run_async(scenario())


def test_a_cancel_is_idempotent_keeps_the_text_and_ends_the_run_once() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
            statuses = [await caller.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"}) for _ in range(3)]
            assert {status for status, _ in statuses} <= {200, 202}
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["event"] for e in events].count("cancel.requested") == 1
            assert events[-1] == {**events[-1], "event": "run.finished", "status": "cancelled", "output": "before "}
            assert gate.cancelled
            status, run = await caller.post(f"/v1/runs/{run_id}/cancel")
            assert (status, run["state"]["status"]) == (200, "cancelled")

    run_async(scenario())


def test_a_run_waiting_for_a_place_is_told_its_position_and_can_be_cancelled_before_it_starts() -> None:
    async def scenario() -> None:
        gate = Gate()
        settings = config(run={"max_active": 1})
        async with running(FunctionAgent(gate), FunctionAgent(count, "count"), settings=settings) as caller:
            first = await caller.start("x")
            await gate.entered.wait()
            second = await caller.start("5", agent="count")
            third = await caller.start("5", agent="count")
            async with caller.stream(f"/v1/runs/{third}/events") as answer:
                assert b'"position":2' in await read_until(answer, b"run.queued\ndata: {")
            await caller.post(f"/v1/runs/{second}/cancel")
            gate.open.set()
            assert (await caller.events(f"/v1/runs/{second}/events"))[-1]["status"] == "cancelled"
            assert (await caller.events(f"/v1/runs/{third}/events"))[-1]["status"] == "completed"
            assert (await caller.events(f"/v1/runs/{first}/events"))[-1]["status"] == "completed"

    run_async(scenario())


def test_every_accepted_steer_ends_applied_or_returned() -> None:
    async def scenario() -> None:
        gate = Gate()
        steers: list[SteerReceived] = []

        async def reading(context: RunContext) -> RunFinished:
            gate.entered.set()
            await until(lambda: context.steering)
            steers.append(context.steering.take()[0])
            return await gate(context)

        async with running(FunctionAgent(reading)) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
            status, first = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "shorter"})
            assert status == 202
            await until(lambda: steers)
            _, second = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "louder"})
            gate.open.set()
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert steers[0].steer_id == first["steer_id"]
            returned = [e["steer_id"] for e in events if e["event"] == "steer.returned"]
            assert returned == [second["steer_id"]]
            status, problem = await caller.post(f"/v1/runs/{run_id}/steer", {"text": "late"})
            assert (status, problem["code"]) == (409, "run_ended")

    run_async(scenario())


def test_a_steer_with_a_key_is_received_once_and_gives_its_id_again_after_the_end() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/steer"
            body = {"text": "shorter", "mode": "interrupt"}
            answers = await asyncio.gather(*(caller.post(path, body, idempotency_key="k") for _ in range(5)))
            assert {status for status, _ in answers} == {202}
            (steer_id,) = {answer["steer_id"] for _, answer in answers}
            for other in ({"text": "longer", "mode": "interrupt"}, {"text": "shorter", "mode": "next_turn"}):
                status, problem = await caller.post(path, other, idempotency_key="k")
                assert (status, problem["code"]) == (422, "idempotency_conflict")
            _, another = await caller.post(path, body, idempotency_key="k2")
            _, keyless = await caller.post(path, body)
            gate.open.set()
            events = await caller.events(f"/v1/runs/{run_id}/events")
            received = [e["steer_id"] for e in events if e["event"] == "steer.received"]
            assert received == [steer_id, another["steer_id"], keyless["steer_id"]]
            status, late = await caller.post(path, body, idempotency_key="k")
            assert (status, late["steer_id"]) == (202, steer_id)
            assert (await caller.post(path, body, idempotency_key="k3"))[1]["code"] == "run_ended"
            assert (await caller.post(path, body, idempotency_key="k" * 256))[0] == 400

    run_async(scenario())


def test_a_keyed_steer_is_known_to_the_server_that_comes_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate()

        async def steer(caller: Caller, run_id: str, text: str) -> tuple[int, Any]:
            return await caller.post(f"/v1/runs/{run_id}/steer", {"text": text}, idempotency_key="k")

        async with running(FunctionAgent(gate), settings=config(tmp_path)) as caller:
            run_id = await caller.start("x")
            _, first = await steer(caller, run_id, "shorter")
        async with running(FunctionAgent(gate), settings=config(tmp_path)) as caller:
            status, again = await steer(caller, run_id, "shorter")
            assert (status, again["steer_id"]) == (202, first["steer_id"])
            assert (await steer(caller, run_id, "longer"))[0] == 422
            assert len((await caller.server.log.state(run_id)).steers) == 1

    run_async(scenario())


def test_a_question_waits_for_its_answer_and_takes_only_the_first() -> None:
    async def scenario() -> None:
        async def asking(context: RunContext) -> RunFinished:
            value = await context.ask(InputRequested(input_id="colour", kind="question", prompt="Which?"))
            return RunFinished(status="completed", output=value)

        async with running(FunctionAgent(asking)) as caller:
            run_id = await caller.start("x")
            path = f"/v1/runs/{run_id}/inputs"
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"input.requested")
            assert (await caller.get(f"/v1/runs/{run_id}"))[1]["state"]["status"] == "waiting"
            assert (await caller.post(f"{path}/size", {"value": "big"}))[1]["code"] == "unknown_input"
            answers = await asyncio.gather(
                *(caller.post(f"{path}/colour", {"value": colour}) for colour in ("red", "blue", "red"))
            )
            assert sorted(status for status, _ in answers) in ([202, 202, 409], [202, 409, 409])
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert [e["event"] for e in events].count("input.received") == 1
            assert events[-1]["output"] in ("red", "blue")

    run_async(scenario())


def test_the_same_idempotency_key_gives_the_same_run_and_another_body_is_refused() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            answers = await asyncio.gather(
                *(caller.post("/v1/runs", {"input": "3"}, idempotency_key="k") for _ in range(5))
            )
            assert len({run["run_id"] for _, run in answers}) == 1
            status, problem = await caller.post("/v1/runs", {"input": "4"}, idempotency_key="k")
            assert (status, problem["code"]) == (422, "idempotency_conflict")
            assert len((await caller.get("/v1/runs"))[1]["runs"]) == 1

    run_async(scenario())


def test_a_repeated_post_with_a_cursor_continues_the_run_it_started() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            body = msgspec.json.encode({"input": "10"})
            headers = {"accept": "text/event-stream", "idempotency-key": "k"}
            url = caller.server.url + "/v1/runs?chunk=token"
            async with caller.http.post(url, data=body, headers=headers) as answer:
                whole = parse(await answer.read())
            async with caller.http.post(url, data=body, headers={**headers, "last-event-id": "4"}) as answer:
                assert parse(await answer.read()) == whole[4:]

    run_async(scenario())


BAD_BODIES = {
    "not json": b"{",
    "not an object": b"[]",
    "no input": b"{}",
    "both": b'{"input":"a","messages":[]}',
    "a number": b'{"input":5}',
    "empty": b'{"input":"  "}',
    "unknown field": b'{"input":"a","agnet":"x"}',
    "bad role": b'{"messages":[{"role":"tool","content":"x"}]}',
    "lone surrogate": b'{"input":"\\ud800"}',
    "bad utf-8": b'{"input":"\xff"}',
    "bad thread": b'{"input":"a","thread_id":"a/b"}',
    "deep": b'{"input":"a","metadata":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_body_that_does_not_fit_is_a_problem_and_starts_nothing(name: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            status, problem = await caller.post("/v1/runs", BAD_BODIES[name])
            assert (status, problem["code"]) == (400, "invalid_request")
            assert problem["detail"]
            assert problem["type"] == "urn:headrace:problem:invalid_request"
            assert (await caller.get("/v1/runs"))[1]["runs"] == []

    run_async(scenario())


def test_an_unknown_agent_is_named_with_those_there_are() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            status, problem = await caller.post("/v1/runs", {"input": "1", "agent": "nobody"})
            assert (status, problem["code"]) == (404, "unknown_agent")
            assert "agent" in problem["hint"]

    run_async(scenario())


def test_a_body_over_the_limit_is_refused_whether_its_length_is_known_or_not() -> None:
    async def scenario() -> None:
        async with running(COUNT, settings=config(limits={"body_bytes": 100_000})) as caller:
            big = msgspec.json.encode({"input": "x" * 1_000_000})

            async def pieces() -> object:
                for start in range(0, len(big), 1000):
                    yield big[start : start + 1000]

            for data in (big, pieces()):
                try:
                    async with caller.http.post(caller.server.url + "/v1/runs", data=data) as answer:
                        assert answer.status == 413
                except aiohttp.ClientError:
                    pass  # the server answered and closed while we were still sending
            assert (await caller.get("/v1/runs"))[1]["runs"] == []

    run_async(scenario())


@pytest.mark.parametrize("path", ["", "/events", "/cancel", "/steer", "/inputs/i"])
def test_a_run_of_another_tenant_is_as_unknown_as_none(path: str) -> None:
    async def scenario() -> None:
        settings = config(auth=AuthConfig(keys={"ann": "key-a", "bob": "key-b"}))
        async with running(COUNT, settings=settings) as caller:
            _, run = await caller.post("/v1/runs", {"input": "1"}, authorization="Bearer key-a")
            body = {"text": "x"} if path == "/steer" else {"value": 1}
            method = caller.get if path in ("", "/events") else None
            for run_id in (run["run_id"], "01a227b0-c75e-7000-ba94-9785d8f45b24"):
                url = f"/v1/runs/{run_id}{path}"
                if method is not None:
                    answer = await caller.get(url, authorization="Bearer key-b")
                else:
                    answer = await caller.post(url, {} if path == "/cancel" else body, authorization="Bearer key-b")
                assert (answer[0], answer[1]["code"]) == (404, "unknown_run")
            assert (await caller.get("/v1/runs", authorization="Bearer key-b"))[1]["runs"] == []
            assert (await caller.get("/v1/runs"))[0] == 401
            assert (await caller.get("/v1/runs", authorization="Bearer nonsense"))[0] == 401
            thread = run["thread_id"]
            assert (await caller.get(f"/v1/threads/{thread}", authorization="Bearer key-b"))[0] == 404
            assert (await caller.get(f"/v1/threads/{thread}", authorization="Bearer key-a"))[0] == 200

    run_async(scenario())


def test_a_thread_is_the_conversation_that_the_next_run_reads() -> None:
    async def scenario() -> None:
        heard: list[list[str]] = []

        async def listening(context: RunContext) -> RunFinished:
            heard.append([m.content for m in context.history])
            context.emit(TextDelta(text=f"answer to {context.question}"))
            return RunFinished(status="completed", output=f"answer to {context.question}")

        async with running(FunctionAgent(listening)) as caller:
            await caller.finished("one", thread_id="t1")
            await caller.finished("two", thread_id="t1")
            await caller.finished("three")
            assert heard == [[], ["one", "answer to one"], []]
            _, thread = await caller.get("/v1/threads/t1")
            assert [m["content"] for m in thread["messages"]] == ["one", "answer to one", "two", "answer to two"]
            assert (await caller.get("/v1/threads/unknown"))[1]["code"] == "unknown_thread"
            threads = (await caller.get("/v1/threads"))[1]["threads"]
            assert [(t["title"], t["active_run"]) for t in threads] == [("three", None), ("one", None)]

    run_async(scenario())


def test_a_failing_agent_ends_its_run_and_shows_no_traceback() -> None:
    async def scenario() -> None:
        async def broken(context: RunContext) -> RunFinished:
            context.emit(TextDelta(text="so far"))
            raise ValueError("secret")

        async with running(FunctionAgent(broken)) as caller:
            run_id = await caller.start("x")
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert events[-1] == {**events[-1], "event": "run.error", "code": "agent_failed"}
            assert "secret" not in str(events)
            assert "text.delta" in [e["event"] for e in events]

    run_async(scenario())


def test_a_run_past_its_deadline_ends_with_an_error() -> None:
    async def scenario() -> None:
        async with running(FunctionAgent(Gate()), settings=config(run={"deadline": 0.05})) as caller:
            run_id = await caller.start("x")
            events = await caller.events(f"/v1/runs/{run_id}/events")
            assert (events[-1]["event"], events[-1]["code"]) == ("run.error", "deadline_exceeded")

    run_async(scenario())


def test_types_choose_events_without_breaking_the_cursor_and_the_end_always_comes() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = (await caller.finished("3"))["run_id"]
            events = await caller.events(f"/v1/runs/{run_id}/events?types=turn.started,turn.finished")
            assert [(e["event"], e["id"]) for e in events] == [
                ("turn.started", 2),
                ("turn.finished", 6),
                ("run.finished", 7),
            ]
            rest = await caller.events(f"/v1/runs/{run_id}/events?types=turn.finished", last_event_id="2")
            assert [e["id"] for e in rest] == [6, 7]
            status, problem = await caller.get(f"/v1/runs/{run_id}/events?types=nonsense")
            assert (status, problem["code"]) == (400, "invalid_request")

    run_async(scenario())


@pytest.mark.parametrize("policy", ["token", "auto", "tokens:4", "interval:20ms", "sentence", "entity"])
def test_every_chunking_policy_gives_the_same_text(policy: str) -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            run_id = await caller.start("50")
            events = await caller.events(f"/v1/runs/{run_id}/events?chunk={policy}")
            assert "".join(e.get("text", "") for e in events) == "".join(f"w{i} " for i in range(50))

    run_async(scenario())


def test_unknown_paths_and_methods_are_problems() -> None:
    async def scenario() -> None:
        async with running(COUNT) as caller:
            assert (await caller.get("/v2/runs"))[1]["code"] == "not_found"
            status, problem = await caller.post("/healthz")
            assert (status, problem["code"]) == (405, "method_not_allowed")

    run_async(scenario())


def test_a_browser_of_a_configured_origin_may_call_and_another_may_not() -> None:
    async def scenario() -> None:
        settings = config(server={"cors_origins": ("https://app.example",)})
        async with running(COUNT, settings=settings) as caller:
            url = caller.server.url + "/v1/runs"
            async with caller.http.options(url, headers={"origin": "https://app.example"}) as answer:
                assert answer.status == 204
                assert answer.headers["access-control-allow-origin"] == "https://app.example"
                assert "idempotency-key" in answer.headers["access-control-allow-headers"]
                assert "last-event-id" in answer.headers["access-control-allow-headers"]
            async with caller.http.get(url, headers={"origin": "https://evil.example"}) as answer:
                assert "access-control-allow-origin" not in answer.headers

    run_async(scenario())


def test_draining_refuses_new_runs_finishes_old_ones_and_says_so() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with running(FunctionAgent(gate), settings=config(server={"drain_grace": 20.0})) as caller:
            run_id = await caller.start("x")
            await gate.entered.wait()
            following = asyncio.create_task(caller.events(f"/v1/runs/{run_id}/events"))
            draining = asyncio.create_task(caller.server.drain())
            await until(lambda: caller.server.runs.draining)
            assert (await caller.get("/readyz"))[0] == 503
            assert (await caller.get("/healthz"))[0] == 200
            status, problem = await caller.post("/v1/runs", {"input": "x"})
            assert (status, problem["code"], problem["retryable"]) == (503, "draining", True)
            gate.open.set()
            await draining
            assert (await following)[-1]["event"] == "run.finished"

    run_async(scenario())


def test_a_drain_does_not_wait_for_a_run_that_waits_for_a_person_and_cuts_its_followers() -> None:
    async def scenario() -> None:
        async def asking(context: RunContext) -> RunFinished:
            await context.ask(InputRequested(input_id="i", kind="question"))
            return RunFinished(status="completed")

        async with running(FunctionAgent(asking), settings=config(server={"drain_grace": 1000.0})) as caller:
            run_id = await caller.start("x")
            async with caller.stream(f"/v1/runs/{run_id}/events") as answer:
                await read_until(answer, b"input.requested")
                await caller.server.drain()
                rest = await answer.read()
            assert b"run.finished" not in rest  # cut, not finished: the client comes back

    run_async(scenario())
