"""The log of a serving process: readable on a terminal, one JSON object a line everywhere else."""

import logging
import sys

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Whatever a call passes as `extra` (run_id, trace_id …) stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class Readable(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        run_id = getattr(record, "run_id", None)
        return super().format(record) + (f"  run {run_id}" if run_id else "")


def log_to_stderr(*, debug: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Readable() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
