"""What llama-server says of itself, at `/props`, `/slots` and in its list of models. It says neither the type of its KV
cache nor how many layers are on a GPU: those are only in its log.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.capacity import Capacity
from headrace.engine.accounts.reading import count, decode, entries, fields, number
from headrace.engine.accounts.remark import Remark

CAPACITY_PATHS = ("/props",)
PATHS = (*CAPACITY_PATHS, "/v1/models", "/slots")


def is_it(props: bytes) -> bool:
    return "default_generation_settings" in fields(decode(props))


def capacity(props: object, _model: str = "") -> Capacity | None:
    """From `/props`, where `n_ctx` is of one slot. None while it loads its model: it says an error then."""
    said = fields(props)
    if said.get("error"):
        return None
    context = fields(said.get("default_generation_settings")).get("n_ctx")
    return Capacity(context_tokens=count(context), slots=count(said.get("total_slots")))


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the bodies at `PATHS`."""
    said, models, slots = (decode(body) for body in bodies)
    props = fields(said)
    yield Remark("ok", f"llama.cpp {props.get('build_info') or 'of an unknown build'}")
    yield from _weights(props.get("model_ftype"), models)
    if (held := capacity(props)) and held.slots and held.context_tokens:
        yield Remark("ok", f"{held.slots} slots, each with {held.context_tokens} tokens of context")
    if any(slot.get("speculative") for slot in entries(slots)):
        yield Remark("ok", "speculative decoding")


def _weights(kind: object, models: object) -> Iterator[Remark]:
    about = fields(next(iter(entries(fields(models).get("data"))), {}).get("meta"))
    size, parameters = number(about.get("size")), number(about.get("n_params"))
    bits = [f"{size * 8 / parameters:.1f} bits each"] if size and parameters else []
    said = [*([str(kind)] if kind else []), *bits]
    if said:
        yield Remark("ok", f"weights: {', '.join(said)}")
