"""What Ollama says of itself, at `/api/ps`: the models that are loaded. How many answers each gives at once it tells
nobody.

https://github.com/ollama/ollama/blob/main/docs/api.md#list-running-models
"""

from headrace.engine.accounts.capacity import Capacity, least
from headrace.engine.accounts.reading import count, entries, fields

CAPACITY_PATHS = ("/api/ps",)


def capacity(said: object, model: str) -> Capacity | None:
    """From the answer there. None as long as the model is not loaded."""
    names = (model, f"{model}:latest")
    loaded = entries(fields(said).get("models"))
    mine = [entry for entry in loaded if entry.get("name") in names or entry.get("model") in names]
    return least(count(entry.get("context_length")) for entry in mine)
