import tracemalloc
from pathlib import Path

import pytest

from harness import run_async
from headrace.events import TextDelta
from headrace.log.journal import JournalLog
from headrace.log.livelog import LiveLog
from headrace.log.memory import MemoryLog
from headrace.testing.log_contract import begin

RECORDS = 20_000


@pytest.mark.parametrize("kind", ["memory", "journal"])
def test_a_buffered_record_costs_its_frame_and_at_most_64_bytes(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        log: LiveLog = MemoryLog() if kind == "memory" else JournalLog(tmp_path)
        async with log:
            claim = await begin(log)
            writer = log.writer(claim)
            await writer.commit(TextDelta(text="warm"))
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for start in range(0, RECORDS, 100):
                for number in range(start, start + 100):
                    writer.emit(TextDelta(text=f" word{number}"))
                await writer.commit()
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            size = sum(len(frame) for frame in await log.read_frames(claim.run_id, after=2, limit=RECORDS))
            assert grown <= size + 64 * RECORDS

    run_async(main())
