"""Whether the library and the model are complete, and whether the model fits: known before its process is started."""

import importlib.util
import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from headrace.engine.gguf import read_header
from headrace.engine.memory import Need
from headrace.engine.transformers.parameters import Kv, Weights
from headrace.errors import ConfigError

_LIBRARIES = ("torch", "transformers", "xgrammar")
_FOR_WEIGHTS = {"full": (), "int8": ("torchao", "accelerate"), "nf4": ("bitsandbytes", "accelerate")}
_INSTALL = (
    "Install it: pip install 'headrace[transformers]'. For a machine without a GPU take PyTorch's build for CPUs."
)
_WEIGHT_BYTES = {"full": 4.0, "int8": 1.1, "nf4": 0.6}  # of one number, with its share of the scales
_KV_BYTES = {"full": 4.0, "int8": 1.1}
_LIBRARY = 700 << 20  # what the process holds besides


def require_libraries(weights: Weights) -> None:
    """Raises ConfigError."""
    missing = [name for name in (*_LIBRARIES, *_FOR_WEIGHTS[weights]) if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"The engine transformers lacks {', '.join(missing)}.", hint=_INSTALL)


def require_model(path: Path, *, weights: Weights, context: int) -> None:
    """Raises ConfigError for what is no model, or not all of one."""
    if not path.exists():
        hint = "Give the path of a folder as the Hugging Face hub has it, or of a GGUF file."
        raise ConfigError(f"There is no model at {path}.", hint=hint)
    if path.is_file():
        read_header(path)
        _require_gguf_library()
        _require_full(path, weights)
        return
    _require_files(path)
    most = _text_part(configuration(path)).get("max_position_embeddings")
    if isinstance(most, int) and context > most:
        hint = f"Lower engine.context_tokens to {most} or less."
        raise ConfigError(f"{context} tokens are more than the {most} that the model at {path} knows.", hint=hint)


def has_chat_template(path: Path) -> bool:
    """False for a base model, which only goes on with a text."""
    if path.is_file():
        return bool(read_header(path).chat_template)
    return (path / "chat_template.jinja").is_file() or "chat_template" in _json(path / "tokenizer_config.json")


def need(path: Path, *, weights: Weights, kv: Kv, context: int, slots: int) -> Need:
    """An estimate: the numbers of the model, those of the cache, and the libraries."""
    if path.is_file():
        header = read_header(path)
        size = path.stat().st_size * 8  # from 4 bits to 32
        layers, width = header.number("block_count", 0), header.number("embedding_length", 0)
        heads = max(1, header.number("attention.head_count", 1))
        keys = width // heads * header.number("attention.head_count_kv", heads)
    else:
        config = _text_part(configuration(path))
        size = int(sum(_numbers(path)) * _WEIGHT_BYTES[weights])
        layers, heads = int(config.get("num_hidden_layers", 0)), int(config.get("num_attention_heads", 1))
        head = config.get("head_dim") or int(config.get("hidden_size", 0)) // heads
        keys = head * int(config.get("num_key_value_heads") or heads)
    return Need(weights=size, cache=int(2 * layers * keys * _KV_BYTES[kv] * context * slots), working=_LIBRARY)


def configuration(folder: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    config = _json(folder / "config.json")
    if not config.get("model_type"):
        hint = "Give a folder as the Hugging Face hub has it: config.json, tokenizer.json, *.safetensors."
        raise ConfigError(f"{folder / 'config.json'} names no `model_type`.", hint=hint)
    return config


def _require_files(folder: Path) -> None:
    wanted = {
        "config.json": ("config.json",),
        "a tokenizer": ("tokenizer.json", "tokenizer.model", "vocab.json"),
        "weights (*.safetensors)": ("*.safetensors",),
    }
    missing = [what for what, names in wanted.items() if not any(any(folder.glob(name)) for name in names)]
    if missing:
        hint = "Give a folder as the Hugging Face hub has it. Weights in other files, such as *.bin, are not read."
        raise ConfigError(f"{folder} is no complete model: there is no {', no '.join(missing)}.", hint=hint)


def _require_gguf_library() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("The engine transformers lacks gguf, which reads GGUF files.", hint=_INSTALL)


def _require_full(path: Path, weights: Weights) -> None:
    if weights != "full":
        raise ConfigError(
            f"{path} is quantised already, and would be read to be quantised again as {weights}.",
            hint="Leave engine.weights out, or give the model's folder with its safetensors.",
        )


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Of a model that sees pictures too."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def _numbers(folder: Path) -> Iterator[int]:
    """How many numbers each tensor has. Raises ConfigError for a damaged file."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as opened:
                (length,) = struct.unpack("<Q", opened.read(8))
                if length > file.stat().st_size:
                    raise ValueError("its header is longer than the file")
                header = json.loads(opened.read(length))
            yield from (prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError, struct.error) as exc:
            hint = "Copy it again: it was cut short, or it holds no weights."
            raise ConfigError(f"{file} is damaged: {exc}", hint=hint) from exc


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no file. Raises ConfigError for one that holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise ConfigError(f"{path} is no JSON: {exc}", hint="Copy it again.") from exc
    return value if isinstance(value, dict) else {}
