"""What a tool is, and what it is given while it runs."""

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.messages import ToolSpec


class ToolContext(Protocol):
    """Handed to a tool that asks for it by a parameter annotated `ToolContext`.

    Safe to use from a thread: a sync tool runs in one.
    """

    @property
    def run_id(self) -> str: ...

    @property
    def call_id(self) -> str:
        """The same on every attempt at this call: the idempotency key for whatever the tool writes to."""
        ...

    @property
    def deadline_left(self) -> float:
        """Seconds until this call is given up. Never negative."""
        ...

    @property
    def cancelled(self) -> bool:
        """True once the run is being cancelled: a sync tool should look at it between steps."""
        ...

    def progress(self, data: Any) -> None:
        """Show a `tool.progress` record. `data` must be JSON."""
        ...


class Tool(Protocol):
    """`spec` is what the model sees. A failure is an exception; the caller makes a record of it."""

    @property
    def spec(self) -> ToolSpec: ...

    def validate(self, arguments: str) -> dict[str, Any]:
        """Parse and check the raw JSON arguments, with defaults filled in.

        Raises:
            InvalidArguments: which field, what was expected.
        """
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Run with validated arguments. The result must be JSON (a msgspec-encodable value)."""
        ...
