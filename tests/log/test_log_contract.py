from pathlib import Path

import pytest

from headrace.log.journal import JournalLog
from headrace.log.memory import MemoryLog
from headrace.log.ports import Log
from headrace.log.retention import Retention
from headrace.testing.log_contract import LogContract


class TestMemory(LogContract):
    survives = False

    def open(self, *, max_records: int = 100_000) -> Log:
        return MemoryLog(retention=Retention(max_records=max_records))


class TestJournal(LogContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place = tmp_path

    def open(self, *, max_records: int = 100_000) -> Log:
        return JournalLog(self.place, retention=Retention(max_records=max_records))


class TestJournalOfSmallSegments(TestJournal):
    def open(self, *, max_records: int = 100_000) -> Log:
        return JournalLog(self.place, retention=Retention(max_records=max_records), segment_bytes=300)


class TestFsync(TestJournal):
    def open(self, *, max_records: int = 100_000) -> Log:
        return JournalLog(self.place, durability="fsync", retention=Retention(max_records=max_records))


class TestSealedAtOnce(TestJournal):
    """Every ended run goes to the archive within a millisecond, under the feet of whoever uses it."""

    def open(self, *, max_records: int = 100_000) -> Log:
        retention = Retention(max_records=max_records, seal_after_s=0.0)
        return JournalLog(self.place, retention=retention, tidy_every_s=0.001, segment_bytes=2000)
