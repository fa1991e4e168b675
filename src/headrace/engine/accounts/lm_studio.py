"""What LM Studio says of itself, at `/api/v1/models`: its models, and the instances of each that are loaded.

https://lmstudio.ai/docs/developer/rest
"""

from headrace.engine.accounts.capacity import Capacity, least
from headrace.engine.accounts.reading import count, entries, fields

CAPACITY_PATHS = ("/api/v1/models",)


def capacity(said: object, model: str) -> Capacity | None:
    """From the answer there. None as long as no instance of the model is loaded."""
    loaded = [
        instance
        for entry in entries(fields(said).get("models"))
        for instance in entries(entry.get("loaded_instances"))
        if model in (entry.get("key"), instance.get("id"))
    ]
    return least(count(fields(instance.get("config")).get("context_length")) for instance in loaded)
