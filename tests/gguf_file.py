"""Writes a GGUF file: a BERT so small that its weights are drawn at random, for what only an encoder can show."""

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

WIDTH, LAYERS, PLACES = 32, 2, 64
_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz猫沙发股市"
TOKENS = (*_MARKS, *(f"▁{letter}" for letter in _LETTERS), *_LETTERS)
_ALIGNED = 32

Value = bool | int | float | str | Sequence[str]


def write_bert(path: Path, *, pooling: int = 1) -> Path:
    """It reads `PLACES` tokens at most. `pooling` is what its header says: 1 the mean, 4 for one that ranks texts."""
    _write(path, _values(pooling), list(_shapes()))
    return path


def _values(pooling: int) -> dict[str, Value]:
    own: dict[str, Value] = {
        "context_length": PLACES,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "block_count": LAYERS,
        "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": pooling,
    }
    marks = {
        "bos": 2,
        "eos": 3,
        "unknown": 1,
        "seperator": 3,
        "padding": 0,
        "cls": 2,
        "mask": 4,
    }  # the format spells it so
    return {
        "general.architecture": "bert",
        **{f"bert.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": TOKENS,
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in marks.items()},
    }


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (WIDTH, len(TOKENS))
    yield "token_types.weight", (WIDTH, 2)
    yield "position_embd.weight", (WIDTH, PLACES)
    yield from _both("token_embd_norm", (WIDTH,))
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield from _both(f"blk.{layer}.{part}", (WIDTH, WIDTH))
        yield from _both(f"blk.{layer}.ffn_up", (WIDTH, 2 * WIDTH))
        yield from _both(f"blk.{layer}.ffn_down", (2 * WIDTH, WIDTH))
        yield from _both(f"blk.{layer}.attn_output_norm", (WIDTH,))
        yield from _both(f"blk.{layer}.layer_output_norm", (WIDTH,))


def _both(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[-1:]


def _write(path: Path, values: dict[str, Value], shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    drawn = random.Random(7)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(values))
    head += b"".join(_text(name) + _value(value) for name, value in values.items())
    data = b""
    for name, shape in shapes:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        spread = 0.02 if name.endswith("bias") else 0.3
        data += _aligned(struct.pack(f"<{count}f", *(drawn.gauss(0, spread) for _ in range(count))))
    path.write_bytes(_aligned(head) + data)


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNED)


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
