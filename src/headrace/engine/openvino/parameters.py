"""What OpenVINO's process is told."""

from headrace.engine.stepped.lines import Parameters


class OpenVinoParameters(Parameters, frozen=True, kw_only=True):
    """`model_path` is a GGUF file or a folder with a model in OpenVINO's own format. `batch_tokens` are computed in one
    step; `kv` is the type of the cache."""

    batch_tokens: int
    kv: str
