"""What the process of transformers is told."""

from typing import Literal

from headrace.engine.stepped.lines import Parameters

Weights = Literal["full", "int8", "nf4"]
"""`full` is 32 bits; `int8` is TorchAO's, `nf4` bitsandbytes' with double quantisation."""

Kv = Literal["full", "int8"]


class TransformersParameters(Parameters, frozen=True, kw_only=True):
    """`model_path` is a folder in the layout of the Hugging Face hub, or a GGUF file. With `snapshot_tokens` the state
    of an answer is saved in the folder `snapshots` every so many tokens; None saves nothing."""

    weights: Weights
    kv: Kv
    snapshots: str
    snapshot_tokens: int | None

    @property
    def together(self) -> bool:
        """Whether the library's own continuous batching answers: its cache is neither quantised nor saved."""
        return self.kv == "full" and self.snapshot_tokens is None
