"""The header of a GGUF file, as far as one must know it before a model is loaded. Reads no weights."""

import struct
from pathlib import Path
from typing import IO

import msgspec

from headrace.errors import ConfigError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEEP = 1024  # elements; longer arrays (the vocabulary) are counted and skipped
_MOST = 1 << 30  # of anything counted in a header: more is damage

Value = int | float | bool | str | list["Value"] | range
"""A `range` stands for an array that was only counted."""


class Header(msgspec.Struct, frozen=True):
    """What the file says about its model. `tensors` is how many it has."""

    tensors: int
    values: dict[str, Value]

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def chat_template(self) -> str:
        return str(self.values.get("tokenizer.chat_template", ""))

    @property
    def vocabulary(self) -> int:
        tokens = self.values.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, list | range) else self.number("vocab_size", 0)

    def number(self, name: str, default: int) -> int:
        """A value of the model's own architecture; the greatest one, where it has one for each layer."""
        return max(self.per_layer(name, default), default=default)

    def per_layer(self, name: str, default: int) -> list[int]:
        """One value, or one for each layer where they differ."""
        value = self.values.get(f"{self.architecture}.{name}", default)
        values = value if isinstance(value, list) else [value]
        return [int(one) for one in values if isinstance(one, int | float)]


def read_header(path: Path) -> Header:
    """Raises ConfigError for a file that is no GGUF, or a damaged one."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ConfigError(f"{path} is not a GGUF file.", hint="Install one: headrace models install smollm2.")
            version, tensors, count = _numbers(file, "IQQ")
            if version < 2 or max(tensors, count) > _MOST:
                raise ValueError(f"version {version}, {tensors} tensors, {count} values")
            return Header(tensors, {_string(file): _value(file, _one(file, "I")) for _ in range(count)})
    except (OSError, ValueError, struct.error) as exc:
        hint = "Install it again: the download was cut short, or it is no model."
        raise ConfigError(f"{path} is a damaged GGUF file: {exc}", hint=hint) from exc


def calls_tools(path: Path) -> bool:
    """Whether the model's chat template knows of tools. Raises ConfigError."""
    return "tools" in read_header(path).chat_template


def _value(file: IO[bytes], kind: int) -> Value:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _one(file, _format(kind))
    of, count = _numbers(file, "IQ")
    if count > _MOST:
        raise ValueError(f"an array of {count} elements")
    if count <= _KEEP:
        return [_value(file, of) for _ in range(count)]
    _skip(file, of, count)
    return range(count)


def _skip(file: IO[bytes], of: int, count: int) -> None:
    if of == _ARRAY:
        raise ValueError("an array of arrays")
    if of != _STRING:
        file.seek(struct.calcsize(_format(of)) * count, 1)
        return
    for _ in range(count):
        file.seek(_length(file), 1)


def _format(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of unknown type {kind}")
    return _NUMBERS[kind]


def _string(file: IO[bytes]) -> str:
    length = _length(file)
    return _exactly(file, length).decode("utf-8", "replace")


def _length(file: IO[bytes]) -> int:
    length = _one(file, "Q")
    if length > _MOST:
        raise ValueError(f"a text of {length} bytes")
    return length


def _one(file: IO[bytes], what: str) -> int:
    (number,) = _numbers(file, what)
    return number


def _numbers(file: IO[bytes], what: str) -> tuple[int, ...]:
    layout = struct.Struct("<" + what)
    return layout.unpack(_exactly(file, layout.size))


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it ends in the middle of its header")
    return data
