"""What llama-server says of itself, at `/props`, `/slots` and in its list of models. It says neither the type of its KV
cache nor how many layers are on a GPU: those are only in its log.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from collections.abc import Iterator, Sequence

from headrace.engine.accounts.reading import decode, entries, fields, number
from headrace.engine.accounts.remark import Remark

PATHS = ("/props", "/v1/models", "/slots")


def is_it(props: bytes) -> bool:
    return "default_generation_settings" in fields(decode(props))


def remarks(bodies: Sequence[bytes]) -> Iterator[Remark]:
    """From the bodies at `PATHS`."""
    said, models, slots = (decode(body) for body in bodies)
    props = fields(said)
    yield Remark("ok", f"llama.cpp {props.get('build_info') or 'of an unknown build'}")
    yield from _weights(props.get("model_ftype"), models)
    context = fields(props["default_generation_settings"]).get("n_ctx")
    if (count := props.get("total_slots")) and context:
        yield Remark("ok", f"{count} slots, each with {context} tokens of context")
    if any(slot.get("speculative") for slot in entries(slots)):
        yield Remark("ok", "speculative decoding")


def _weights(kind: object, models: object) -> Iterator[Remark]:
    about = fields(next(iter(entries(fields(models).get("data"))), {}).get("meta"))
    size, count = number(about.get("size")), number(about.get("n_params"))
    said = [*([str(kind)] if kind else []), *([f"{size * 8 / count:.1f} bits each"] if size and count else [])]
    if said:
        yield Remark("ok", f"weights: {', '.join(said)}")
