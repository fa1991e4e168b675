"""What every `Log` must do, as tests. Subclass `LogContract` in a test module and say how your log is opened:

    class TestMyLog(LogContract):
        def open(self, *, max_records: int = 100_000) -> Log:
            return MyLog(self.place, max_records=max_records)

`open` is called once per test, and again after the first has been closed in the tests of a restart; give each test a
store of its own (a fixture may set `self.place`). Set `survives = False` for a log that forgets everything on closing.
"""

from headrace.testing.log_contract.following import FollowingContract
from headrace.testing.log_contract.keys import KeysContract
from headrace.testing.log_contract.owners import OwnersContract
from headrace.testing.log_contract.records import RecordsContract
from headrace.testing.log_contract.restarts import RestartsContract
from headrace.testing.log_contract.runs import DONE, Told, begin, frames_of, run_id, started, text_of, unfinished, words
from headrace.testing.log_contract.states import StatesContract
from headrace.testing.log_contract.work import WorkContract

__all__ = [
    "DONE",
    "LogContract",
    "Told",
    "begin",
    "frames_of",
    "run_id",
    "started",
    "text_of",
    "unfinished",
    "words",
]


class LogContract(
    RecordsContract, OwnersContract, WorkContract, KeysContract, FollowingContract, StatesContract, RestartsContract
):
    """All of it."""
