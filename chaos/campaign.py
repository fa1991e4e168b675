"""One campaign against one system: clients run plans while processes die and connections are cut; then all must end."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from chaos.blows import Blows
from chaos.cutter import Cutter
from chaos.evidence import Followed, RunEvidence
from chaos.ledger import read_ledger
from chaos.orders import Orders
from chaos.plan import RunPlan, plan_run
from chaos.row import Row, Tally
from chaos.system import Final, Seen, System
from chaos.tool_runs import judge_tools, missed_tools
from chaos.verdict import Finding

_SECOND_READER = 1 / 3
"""How often a run is also followed by a client of another kind, which comes later."""
_FINAL_S = 30.0
_RETRY_S = 0.25
_SAY_EVERY_S = 20.0


class Campaign:
    """`say` is told how far it is, and everything that is found, at once."""

    def __init__(self, system: System, orders: Orders, folder: Path, *, say: Callable[[str], None]) -> None:
        self._system = system
        self._orders = orders
        self._folder = folder
        self._say = say
        self._tally = Tally()
        self._over = False
        self._quiet_at = 0.0
        self._audits: set[asyncio.Task[None]] = set()

    async def run(self) -> tuple[Row, list[Finding]]:
        began = time.monotonic()
        try:
            await self._system.start(self._orders.instances, self._folder)
            async with Cutter(cast(int, urlsplit(self._system.url).port)) as self._cutter:
                self._system.url = self._cutter.url
                self._blows = Blows(self._system.processes, self._chance("blows"))
                await self._break_and_follow()
            self._judge_what_remains()
        finally:
            await self._system.stop()
        row = self._tally.row(
            self._system.name,
            instances=self._orders.instances,
            seconds=time.monotonic() - began,
            kills=self._blows.kills,
            cuts=self._cutter.cuts,
        )
        return row, self._tally.findings

    async def _break_and_follow(self) -> None:
        clients = [asyncio.create_task(self._client(number)) for number in range(self._orders.clients)]
        saying = asyncio.create_task(self._keep_saying())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._blows.strike_all(self._orders.kills, self._orders.seconds))
                group.create_task(self._cut_all())
                group.create_task(asyncio.sleep(self._orders.seconds))
            self._over = True
            self._quiet_at = time.time()
            self._say("everything is up again; the runs under way are followed to their end")
            await asyncio.gather(*clients)
            await asyncio.gather(*self._audits)
        finally:
            for task in (saying, *clients, *self._audits):
                task.cancel()
            await asyncio.gather(saying, *clients, *self._audits, return_exceptions=True)

    async def _cut_all(self) -> None:
        """Some cuts miss, because their connection ends first: the pace follows what is left."""
        chance = self._chance("cuts")
        end = time.monotonic() + self._orders.seconds
        while (left := self._orders.cuts - self._cutter.cuts) > 0:
            await asyncio.sleep(chance.expovariate(left / max(1.0, end - time.monotonic())))
            self._cutter.cut_one(chance)

    async def _client(self, number: int) -> None:
        """One run after the other."""
        kinds = self._system.kinds
        kind = kinds[number % len(kinds)]
        for at in count():
            if self._over:
                return
            plan = plan_run(self._orders.seed, f"c{number}-{at}")
            run_id = await self._begin(number, plan)
            if run_id is None:
                continue
            readers = [self._read(run_id, kind)]
            chance = self._chance(plan.name)
            if chance.random() < _SECOND_READER:
                other = chance.choice([k for k in kinds if k != kind] or [kind])
                readers.append(self._read(run_id, other, late=chance.uniform(0, self._orders.late_s)))
            followed = await asyncio.gather(*readers)
            self._keep(asyncio.create_task(self._audit(run_id, plan, followed)))

    async def _begin(self, client: int, plan: RunPlan) -> str | None:
        try:
            async with asyncio.timeout(self._orders.patience_s):
                return await self._system.begin(client, plan)
        except Exception as error:  # whatever a client raises, its user sees
            self._found(Finding(fault="client_errors", where=f"starting {plan.name}", what=repr(error)))
            return None

    async def _read(self, run_id: str, kind: str, *, late: float = 0.0) -> Followed:
        await asyncio.sleep(late)
        seen: list[Seen] = []
        error = None
        reading = asyncio.create_task(_collect(self._system.follow(run_id, kind), seen))
        try:
            while not reading.done() and not self._out_of_patience():
                await asyncio.wait([reading], timeout=1.0)
            if reading.done():
                await reading
            else:
                error = f"no end after record {seen[-1].seq if seen else 0}"
        except Exception as raised:  # whatever a client raises, its user sees
            error = f"{raised!r} at {time.time():.2f}"
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        return Followed(client=kind, seen=seen, error=error)

    def _out_of_patience(self) -> bool:
        return self._over and time.time() > self._quiet_at + self._orders.patience_s

    async def _audit(self, run_id: str, plan: RunPlan, followed: list[Followed]) -> None:
        """Ask the system what became of a run, when whoever was frozen has had time to wake up."""
        await asyncio.sleep(self._orders.settle_s)
        run = RunEvidence(run_id=run_id, plan=plan, followed=followed, final=await self._final(run_id))
        for finding in self._tally.add(run, self._blows.struck):
            self._say(str(finding))

    async def _final(self, run_id: str) -> Final | None:
        """None when it cannot be had for half a minute in which everything was up."""
        asked = time.time()
        while True:
            try:
                async with asyncio.timeout(_FINAL_S):
                    return await self._system.final(run_id)
            except Exception as error:  # while the system is being broken this may be anything
                up_since = max(asked, self._quiet_at) if self._over else time.time()
                if time.time() > up_since + _FINAL_S:
                    self._say(f"run {run_id} cannot be read: {error!r}")
                    return None
                await asyncio.sleep(_RETRY_S)

    def _judge_what_remains(self) -> None:
        lines = [
            f"{blow.at:.3f} {blow.until:.3f} {blow.kind} {blow.target} {blow.pid}\n" for blow in self._blows.struck
        ]
        (self._folder / "blows").write_text("".join(lines))
        for process in self._system.processes:
            process.look()
            for fall in process.falls:
                self._found(Finding(fault="falls", where=process.name, what=fall))
        executions = read_ledger(self._folder / "ledger")
        tools = judge_tools(self._tally.begun, executions, self._tally.settled, self._blows.struck)
        for finding in (*tools, *missed_tools(self._tally.completed, executions)):
            self._found(finding)

    def _found(self, finding: Finding) -> None:
        self._tally.findings.append(finding)
        self._say(str(finding))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._audits.add(task)
        task.add_done_callback(self._audits.discard)

    async def _keep_saying(self) -> None:
        while True:
            await asyncio.sleep(_SAY_EVERY_S)
            found = len(self._tally.findings)
            self._say(f"{self._blows.kills} kills, {self._cutter.cuts} cuts, {self._tally.runs} runs, {found} findings")

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{self._orders.seed}/{what}")


async def _collect(records: AsyncIterator[Seen], into: list[Seen]) -> None:
    async with contextlib.aclosing(cast(AsyncGenerator[Seen, None], records)):
        async for seen in records:
            into.append(seen)  # noqa: PERF401  (what came before a cancellation counts)
