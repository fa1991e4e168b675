"""What a server meets whose hardware cannot compute what its weights need: all is well until the first token."""

from typing import Any

from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor


class DyingSampler(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, *_args: Any) -> None:
        self._asked = False

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self._asked = self._asked or (batch_update is not None and bool(batch_update.added))

    def apply(self, logits: Any) -> Any:
        if self._asked:
            raise NotImplementedError("no kernel for these weights on this device")
        return logits
