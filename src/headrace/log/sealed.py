"""The archive's tables, and what changes them. Runs in the writer's thread, inside a transaction.

runs       one row per ended run: what lists and look-ups need
states     its final state as JSON
frames     its records, FRAMES_PER_ROW frames to a row, as they stood on the wire
forgotten  ids of runs that are gone while the journal may still name them
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from headrace.log.live import LiveRun, info
from headrace.state import RunState

FRAMES_PER_ROW = 500
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  run_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, thread_id TEXT NOT NULL, key TEXT, fingerprint TEXT NOT NULL,
  first INTEGER NOT NULL, seq INTEGER NOT NULL, ended_ts INTEGER NOT NULL, segment INTEGER NOT NULL,
  keys BLOB NOT NULL, info BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_tenant ON runs (tenant, run_id);
CREATE INDEX IF NOT EXISTS runs_by_thread ON runs (tenant, thread_id, run_id);
CREATE INDEX IF NOT EXISTS runs_by_end ON runs (ended_ts);
CREATE UNIQUE INDEX IF NOT EXISTS runs_by_key ON runs (tenant, key) WHERE key IS NOT NULL;
CREATE TABLE IF NOT EXISTS states (run_id TEXT PRIMARY KEY, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS frames (run_id TEXT, first INTEGER, last INTEGER, data BLOB NOT NULL,
  PRIMARY KEY (run_id, first));
CREATE TABLE IF NOT EXISTS forgotten (run_id TEXT PRIMARY KEY, segment INTEGER NOT NULL) WITHOUT ROWID;
"""

_DROP_OLD = (
    """DELETE FROM frames WHERE run_id IN (SELECT run_id FROM runs WHERE ended_ts < :frames AND first < seq)
       AND last < (SELECT seq FROM runs WHERE runs.run_id = frames.run_id)""",
    "UPDATE runs SET first = seq WHERE ended_ts < :frames AND first < seq",
    "INSERT OR IGNORE INTO forgotten SELECT run_id, segment FROM runs WHERE ended_ts < :forget",
    "DELETE FROM states WHERE run_id IN (SELECT run_id FROM runs WHERE ended_ts < :forget)",
    "DELETE FROM frames WHERE run_id IN (SELECT run_id FROM runs WHERE ended_ts < :forget)",
    "DELETE FROM runs WHERE ended_ts < :forget",
    "DELETE FROM forgotten WHERE segment < :segment",
)


def prepare(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"format {version}, this Headrace reads {VERSION}")
    if version == 0:
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")


def insert(db: sqlite3.Connection, *, runs: Sequence[tuple[LiveRun, RunState]]) -> None:
    for run, state in runs:
        _insert(db, run, state)


def _insert(db: sqlite3.Connection, run: LiveRun, state: RunState) -> None:
    new = run.new
    row = info(new, state)
    db.execute(
        "INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        (
            new.run_id,
            new.tenant,
            row.thread_id,
            new.key,
            new.fingerprint,
            run.first,
            run.head,
            state.ended_ts or row.created_ts,
            run.segment,
            msgspec.json.encode(run.keys),
            msgspec.json.encode(row),
        ),
    )
    db.execute("INSERT OR REPLACE INTO states VALUES (?,?)", (run.id, msgspec.json.encode(state)))
    db.execute("DELETE FROM frames WHERE run_id = ?", (run.id,))
    db.executemany("INSERT INTO frames VALUES (?,?,?,?)", _frame_rows(run))


def _frame_rows(run: LiveRun) -> list[tuple[str, int, int, bytes]]:
    """The terminal frame has a row of its own, so that it can outlive the others."""
    body, terminal = run.frames[:-1], run.frames[-1]
    rows = [(run.id, run.head, run.head, terminal)]
    for start in range(0, len(body), FRAMES_PER_ROW):
        frames = body[start : start + FRAMES_PER_ROW]
        rows.append((run.id, run.first + start, run.first + start + len(frames) - 1, b"".join(frames)))
    return rows


def drop_old(db: sqlite3.Connection, *, frames_before: int, forget_before: int, oldest_segment: int) -> None:
    """Drop the records of runs that ended before one time, all but the last, and the runs that ended before another."""
    aged = {"frames": frames_before, "forget": forget_before, "segment": oldest_segment}
    for statement in _DROP_OLD:
        db.execute(statement, aged)
