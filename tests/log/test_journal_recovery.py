"""What recovery makes of segments that were cut, damaged or lost: never a torn record, never a silent hole."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import run_async
from headrace.errors import LogCorrupt, LogLocked
from headrace.events import CancelRequested, RunFinished, TextDelta
from headrace.log.entries import MAGIC, Damage, Entry, claim_entry, keyed_entry, new_entry, read_entries, records_entry
from headrace.log.inspect import describe
from headrace.log.journal import JournalLog
from headrace.log.live import LiveRun
from headrace.log.ports import NewRun
from headrace.log.retention import Retention
from headrace.testing.log_contract import begin, frames_of, run_id, started, text_of, unfinished
from headrace.wire.codec import encode_record


def _segment() -> tuple[bytes, list[int]]:
    """A segment with every kind of entry, and where each begins."""
    parts = [MAGIC]
    for number in range(4):
        run = LiveRun(NewRun(run_id=run_id(number), key="k"), fence=1)
        first = encode_record(1, 5, started("5f0e1b2c records x 3\n\n\n"))
        frames = [encode_record(seq, 5, TextDelta(text=f"ä{seq}\n\n")) for seq in range(2, 5)]
        parts += [
            new_entry(run, first),
            claim_entry(run),
            records_entry(run, frames),
            keyed_entry(run, frames, {"k": (2, 4)}),
        ]
    starts = [sum(map(len, parts[: n + 1])) for n in range(len(parts) - 1)]
    return b"".join(parts), starts


SEGMENT, STARTS = _segment()
WHOLE = {entry.offset: entry for entry in read_entries(SEGMENT) if isinstance(entry, Entry)}


def _ends() -> dict[int, int]:
    return dict(zip(STARTS, [*STARTS[1:], len(SEGMENT)], strict=True))


def test_every_entry_written_is_read() -> None:
    assert sorted(WHOLE) == STARTS
    assert not any(isinstance(item, Damage) for item in read_entries(SEGMENT))


def test_cut_at_every_byte_the_whole_entries_are_read_and_the_rest_is_one_damage_at_the_end() -> None:
    ends = _ends()
    for cut in range(1, len(SEGMENT)):
        items = list(read_entries(SEGMENT[:cut]))
        whole = [start for start in STARTS if ends[start] <= cut]
        assert [item.offset for item in items if isinstance(item, Entry)] == whole
        tail = items[len(whole) :]
        kept = ends[whole[-1]] if whole else len(MAGIC) if cut >= len(MAGIC) else 0
        assert tail == [] if kept == cut else [(d.start, d.end) for d in tail if isinstance(d, Damage)] == [(kept, cut)]


@given(
    where=st.integers(0, len(SEGMENT) - 1),
    what=st.binary(min_size=1, max_size=40),
    cut=st.integers(0, len(SEGMENT)),
)
def test_overwritten_bytes_are_reported_and_every_other_entry_is_read(where: int, what: bytes, cut: int) -> None:
    broken = (SEGMENT[:where] + what + SEGMENT[where + len(what) :])[: max(cut, where)]
    items = list(read_entries(broken))
    touched = {n for n in range(len(broken)) if n >= len(SEGMENT) or broken[n] != SEGMENT[n]}
    read = {item.offset: item for item in items if isinstance(item, Entry)}
    for offset, entry in read.items():
        assert WHOLE[offset] == entry
    for start, end in _ends().items():
        if end <= len(broken) and not touched.intersection(range(start, end)):
            assert start in read
    reported = {n for item in items if isinstance(item, Damage) for n in range(item.start, item.end)}
    assert {n for n in touched if n >= len(MAGIC)} <= reported


def _open(path: Path, *, segment_bytes: int = 400) -> JournalLog:
    return JournalLog(path, segment_bytes=segment_bytes, retention=Retention(seal_after_s=0.0), tidy_every_s=3600)


async def _three_runs(path: Path) -> dict[str, list[bytes]]:
    """Each run has entries in several segments."""
    async with _open(path) as log:
        claims = [await begin(log, number) for number in (1, 2, 3)]
        for number in range(12):
            for claim in claims:
                await log.append(claim.run_id, [TextDelta(text=f"{number} ")], fence=claim.fence)
        return {claim.run_id: await frames_of(log, claim.run_id) for claim in claims}


def _damage(path: Path, what: bytes) -> int:
    data = path.read_bytes()
    offset = data.index(what)
    path.write_bytes(data[:offset] + b"#" + data[offset + 1 :])
    return offset


def test_a_torn_tail_is_cut_off_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = run_async(_three_runs(tmp_path))
    last = max(tmp_path.glob("*.journal"))
    size = last.stat().st_size
    os.truncate(last, size - 3)

    async def main() -> None:
        async with _open(tmp_path) as log:
            assert await frames_of(log, run_id(3)) == frames[run_id(3)][:-1]
            assert await frames_of(log, run_id(1)) == frames[run_id(1)]
            claim = await log.claim(run_id(3))
            await log.writer(claim).commit(TextDelta(text="again"))
        async with _open(tmp_path) as log:
            assert (await log.head(run_id(3))).seq == 13
            assert text_of(await log.read(run_id(3), after=12)) == "again"

    with caplog.at_level(logging.WARNING, "headrace"):
        run_async(main())
    (record,) = caplog.records
    assert f"{last}: cut off a torn tail of" in record.getMessage()


@pytest.mark.parametrize("which", [1, 3, -1])
@pytest.mark.parametrize("what", [b'"text"', b"records 0199"])
def test_damage_in_the_middle_is_reported_and_its_runs_are_not_served_over_the_hole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: int, what: bytes
) -> None:
    frames = run_async(_three_runs(tmp_path))
    damaged = sorted(tmp_path.glob("*.journal"))[which]
    offset = _damage(damaged, what)

    async def main() -> None:
        async with _open(tmp_path) as log:
            found = [await _found(log, number) for number in (1, 2, 3)]
            assert found.count(None) == 1
            assert all(result == frames[run_id(n)] for n, result in enumerate(found, 1) if result is not None)
            lost = run_id(found.index(None) + 1)
            assert lost not in await unfinished(log)
            for call in (log.state(lost), log.head(lost), log.find(lost), log.claim(lost), log.read(lost)):
                with pytest.raises(LogCorrupt):
                    await call
            with pytest.raises(LogCorrupt):
                await log.append(lost, [CancelRequested()])
            with pytest.raises(LogCorrupt):
                await log.create(NewRun(run_id=lost), started())
            for run in await unfinished(log):
                await log.writer(await log.claim(run)).commit(RunFinished(status="completed"))
            await log.tidy()
        assert damaged.exists()

    run_async(main())
    message = caplog.records[0].getMessage()
    assert str(damaged) in message
    start, end = (int(word) for word in message.split("from byte ")[1].split(" (")[0].split(" to "))
    assert start <= offset < end


async def _found(log: JournalLog, number: int) -> list[bytes] | None:
    try:
        return await frames_of(log, run_id(number))
    except LogCorrupt:
        return None


def test_a_lost_segment_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_async(_three_runs(tmp_path))
    sorted(tmp_path.glob("*.journal"))[2].unlink()

    async def main() -> None:
        async with _open(tmp_path) as log:
            assert None in [await _found(log, number) for number in (1, 2, 3)]

    run_async(main())
    assert "does not continue" in caplog.text


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with _open(tmp_path):
            with pytest.raises(LogLocked, match=f"pid {os.getpid()}"):
                await _open(tmp_path).__aenter__()
        async with _open(tmp_path):
            pass

    run_async(main())


def test_an_archive_that_is_none_is_reported(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(b"no database" * 1000)

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(LogCorrupt, match=r"index\.db"):
                await _open(tmp_path).__aenter__()

    run_async(main())


def test_a_segment_reads_as_text(tmp_path: Path) -> None:
    run_async(_three_runs(tmp_path))
    lines = min(tmp_path.glob("*.journal")).read_text().splitlines()
    assert lines[0] == "headrace journal 1"
    assert lines[1].split()[1:3] == ["new", run_id(1)]
    assert lines[3:5] == ["id: 1", "event: run.started"]


def test_a_directory_can_be_inspected(tmp_path: Path) -> None:
    run_async(_three_runs(tmp_path))
    lines = list(describe(tmp_path))
    assert len(lines) == 3 + 36
    assert lines[0].split() == ["0000000001.journal", "19", "new", run_id(1), "1-1", "run.started"]
    _damage(max(tmp_path.glob("*.journal")), b'"text"')
    assert sum("DAMAGED" in line for line in describe(tmp_path)) == 1


def test_concurrent_work_survives_a_restart_byte_for_byte(tmp_path: Path) -> None:
    async def write() -> dict[str, list[bytes]]:
        async with _open(tmp_path, segment_bytes=10_000) as log:

            async def work(number: int) -> None:
                claim = await begin(log, number)
                writer = log.writer(claim)
                for step in range(30):
                    writer.emit(TextDelta(text=f"{number}:{step}"))
                    if step % (number + 1) == 0:
                        await log.append(claim.run_id, [CancelRequested()], key=str(step))
                await writer.commit()

            await asyncio.gather(*(work(number) for number in range(1, 20)))
            return {run: await frames_of(log, run) for run in await unfinished(log)}

    async def read() -> dict[str, list[bytes]]:
        async with _open(tmp_path) as log:
            return {run: await frames_of(log, run) for run in await unfinished(log)}

    written = run_async(write())
    assert len(written) == 19
    assert run_async(read()) == written
