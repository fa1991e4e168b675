"""What a server lists: agents, runs, threads."""

import msgspec

from headrace.messages import Message
from headrace.state import Status


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of runs. Times are Unix milliseconds; `title` begins the last user message."""

    run_id: str
    agent: str
    thread_id: str
    status: Status
    created_ts: int
    ended_ts: int | None
    seq: int
    title: str


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that share a conversation, oldest first."""

    thread_id: str
    messages: tuple[Message, ...]
    runs: tuple[RunInfo, ...]


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
