"""Transformers in a process of its own: `python -m headrace.engine.transformers.child`."""

import os

from headrace.engine.stepped.batch import Model
from headrace.engine.stepped.child import serve
from headrace.engine.transformers.parameters import TransformersParameters


def _load(parameters: TransformersParameters) -> Model:
    os.environ["HF_HUB_OFFLINE"] = "1"  # whatever is missing is missing, and is not looked for elsewhere
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from headrace.engine.transformers.model.loading import load

    return load(parameters)


if __name__ == "__main__":
    serve(TransformersParameters, _load)
