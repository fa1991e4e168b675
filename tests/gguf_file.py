"""Writes GGUF files: a BERT so small that its weights are drawn at random, for what only an encoder can show; and what
becomes of a real model when its weights are of another type, or layers are left out.

Weights become of another type by llama.cpp's own code, which the embedded engine's library exports.
"""

import ctypes
import mmap
import random
import re
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

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
    tensors = []
    for name, shape in shapes:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        spread = 0.02 if name.endswith("bias") else 0.3
        data = struct.pack(f"<{count}f", *(drawn.gauss(0, spread) for _ in range(count)))
        tensors.append(Tensor(name, shape, TYPES["F32"], data))
    write_weights(path, Weights({name: _value(value) for name, value in values.items()}, tensors))


# A real model, changed

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
}
"""Of weights, as the format numbers them."""

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value of each type
_LAYER = re.compile(r"blk\.(\d+)\.")


class Tensor(msgspec.Struct, frozen=True):
    """`shape` begins with the length of a row."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes

    @property
    def layer(self) -> int | None:
        found = _LAYER.match(self.name)
        return int(found[1]) if found else None


class Weights(msgspec.Struct, frozen=True):
    """A file's content. Its `values` are as they stand there, with their type before them."""

    values: dict[str, bytes]
    tensors: list[Tensor]


def read_weights(path: Path) -> Weights:
    """For files that llama.cpp reads."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = _Place(data)
        _, _, tensors, values = place.take("<4sIQQ")
        found = {place.text(): place.value() for _ in range(values)}
        heads = [_head(place) for _ in range(tensors)]
        start = len(_aligned(data[: place.at]))
        return Weights(found, [_tensor(data, start, *head) for head in heads])


def write_weights(path: Path, weights: Weights) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights.tensors), len(weights.values))
    head += b"".join(_text(name) + value for name, value in weights.values.items())
    at = 0
    for tensor in weights.tensors:
        dimensions = len(tensor.shape)
        head += _text(tensor.name) + struct.pack(f"<I{dimensions}QIQ", dimensions, *tensor.shape, tensor.kind, at)
        at += len(_aligned(tensor.data))
    with path.open("wb") as file:
        file.write(_aligned(head))
        for tensor in weights.tensors:
            file.write(_aligned(tensor.data))


def with_layers(weights: Weights, kept: Collection[int]) -> Weights:
    """A smaller model of the same vocabulary: the layers `kept`, in their order, without the others."""
    places = {layer: place for place, layer in enumerate(sorted(kept))}
    architecture = weights.values["general.architecture"][12:].decode()
    tensors = []
    for tensor in weights.tensors:
        layer = tensor.layer
        if layer is None:
            tensors.append(tensor)
        elif layer in places:
            name = _LAYER.sub(f"blk.{places[layer]}.", tensor.name)
            tensors.append(msgspec.structs.replace(tensor, name=name))
    return Weights({**weights.values, f"{architecture}.block_count": _value(len(places))}, tensors)


def as_types(weights: Weights, kind_of: Callable[[Tensor], str]) -> Weights:
    """The same model with each matrix as the type that `kind_of` names. Norms stay as they are."""
    return Weights(weights.values, [_as_type(tensor, kind_of) for tensor in weights.tensors])


def _as_type(tensor: Tensor, kind_of: Callable[[Tensor], str]) -> Tensor:
    kind = TYPES[kind_of(tensor)] if len(tensor.shape) > 1 else tensor.kind
    if kind == tensor.kind:
        return tensor
    return msgspec.structs.replace(tensor, kind=kind, data=_quantised(_in_full(tensor), tensor.shape, kind))


def _in_full(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    count = int(np.prod(tensor.shape))
    if tensor.kind == TYPES["F32"]:
        return np.frombuffer(tensor.data, np.float32)
    full = np.empty(count, np.float32)
    ggml = _ggml()
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    ggml.ggml_get_type_traits(tensor.kind).contents.to_float(tensor.data, full.ctypes.data, count)
    return full


def _quantised(full: np.ndarray[tuple[int], np.dtype[np.float32]], shape: tuple[int, ...], kind: int) -> bytes:
    row, rows = shape[0], full.size // shape[0]
    if kind == TYPES["F32"]:
        return full.tobytes()
    ggml = _ggml()
    ggml.ggml_row_size.restype = ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    size = ggml.ggml_row_size(kind, ctypes.c_int64(row)) * rows
    data = ctypes.create_string_buffer(size)
    numbers = (ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(row))
    written = ggml.ggml_quantize_chunk(kind, ctypes.c_void_p(full.ctypes.data), data, *numbers, None)
    assert written == size, f"type {kind} has no rows of {row}"
    return data.raw


def _ggml() -> ctypes.CDLL:
    import xllamacpp

    return ctypes.CDLL(xllamacpp.xllamacpp.__file__)


class _Traits(ctypes.Structure):
    """ggml_type_traits, as far as it is used."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)),
    )


class _Place:
    """Where a file is being read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self._data, self.at)
        self.at += struct.calcsize(layout)
        return found

    def text(self) -> str:
        (length,) = self.take("<Q")
        self.at += length
        return self._data[self.at - length : self.at].decode()

    def value(self) -> bytes:
        start = self.at
        (kind,) = self.take("<I")
        count = 1
        if kind == 9:
            kind, count = self.take("<IQ")
        if kind == 8:
            for _ in range(count):
                self.text()
        else:
            self.at += _SIZES[kind] * count
        return self._data[start : self.at]


def _head(place: _Place) -> tuple[str, tuple[int, ...], int, int]:
    name = place.text()
    (dimensions,) = place.take("<I")
    *shape, kind, offset = place.take(f"<{dimensions}QIQ")
    return name, tuple(shape), kind, offset


def _tensor(data: mmap.mmap, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
    ggml = _ggml()
    ggml.ggml_row_size.restype = ctypes.c_size_t
    size = ggml.ggml_row_size(kind, ctypes.c_int64(shape[0])) * int(np.prod(shape[1:], dtype=np.int64))
    return Tensor(name, shape, kind, data[start + offset : start + offset + size])


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
