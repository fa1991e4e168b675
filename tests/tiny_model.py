"""A language model made on the spot: a random Qwen3 with a byte-level BPE, in the layout of the Hugging Face hub.

It says nonsense, but every server takes it for a real model, and two servers with the same folder say the same
nonsense at temperature 0. Nothing is downloaded and only numpy is needed: `python tests/tiny_model.py FOLDER`.
"""

import itertools
import json
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 256, 4, 4, 2, 64, 512
CONTEXT = 2048
MERGES = 400
GROUP = 128  # weights that share a scale in AWQ and GPTQ
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NAME = "tiny"

# What GPT-2 and everybody after it split words by, less what Python's `re` cannot say; the tokenizer has its own.
_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
_SPLIT = r"'(?i:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# ChatML, as Qwen has it, with tools the way Hermes asks for them.
CHAT_TEMPLATE = """
{%- if tools %}<|im_start|>system
You may call these tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


Quantized = Literal["awq", "gptq", "int8"]


def make_tiny_model(
    folder: Path, *, text: str, seed: int = 7, quantized: Quantized | None = None, window: int | None = None
) -> Path:
    """Write the model into `folder`, which is made. `text` is what the tokenizer learns its words from. With `window`
    it is a Mistral whose layers all see so many tokens back."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = train(text, MERGES)
    _write(folder / "tokenizer.json", _tokenizer(vocabulary, merges))
    _write(folder / "tokenizer_config.json", _tokenizer_config())
    config = _config(len(vocabulary), end=vocabulary[SPECIAL[2]])
    weights: dict[str, _Array] = dict(_weights(len(vocabulary), np.random.default_rng(seed)))
    if window is not None:
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
        weights = {
            name: tensor for name, tensor in weights.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))
        }
    if quantized is not None:
        config["quantization_config"] = _QUANTIZATION[quantized]
        weights = _quantized(weights, quantized)
    _write(folder / "config.json", config)
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def make_tiny_adapter(folder: Path, *, seed: int = 11) -> Path:
    """A LoRA adapter for the model, as `peft` writes it, and so strong that it says something else."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, chance = 8, np.random.default_rng(seed)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8 * rank, "bias": "none"}
    _write(folder / "adapter_config.json", {**config, "target_modules": ["o_proj"]})
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for layer in range(LAYERS):
        place = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{place}.lora_A.weight"] = chance.standard_normal((rank, HEADS * HEAD), np.float32)
        weights[f"{place}.lora_B.weight"] = chance.standard_normal((HIDDEN, rank), np.float32)
    write_safetensors(folder / "adapter_model.safetensors", weights)
    return folder


def train(text: str, count: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Byte-pair encoding: the commonest pair of neighbours becomes one token, `count` times."""
    alphabet = _alphabet()
    common = Counter(_WORD.findall(text)).most_common(600)
    words = Counter({tuple(alphabet[byte] for byte in word.encode()): times for word, times in common})
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    tokens = [*sorted(alphabet.values()), *dict.fromkeys("".join(pair) for pair in merges), *SPECIAL]
    return {token: at for at, token in enumerate(tokens)}, merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def _alphabet() -> dict[int, str]:
    """A printable character for every byte: its own where it has one."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> object:
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[token], "content": token, **added} for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, by_bytes]},
        "post_processor": None,
        "decoder": by_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: at for token, at in vocabulary.items() if token not in SPECIAL},
            "merges": [list(pair) for pair in merges],
        },
    }


def _tokenizer_config() -> object:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def _config(vocabulary: int, *, end: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }


_Tensor = npt.NDArray[np.float32]
_Array = npt.NDArray[Any]

_QUANTIZATION: dict[Quantized, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False},
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "token",
                    "dynamic": True,
                },
            }
        },
    },
}


def _weights(vocabulary: int, random: np.random.Generator) -> dict[str, _Tensor]:
    def matrix(rows: int, columns: int, scale: float = 1.0) -> _Tensor:
        return random.standard_normal((rows, columns), np.float32) * np.float32(scale / columns**0.5)

    def ones(count: int) -> _Tensor:
        return np.ones(count, np.float32)

    out = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN, 8.0), "model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        out |= {
            f"{at}.input_layernorm.weight": ones(HIDDEN),
            f"{at}.post_attention_layernorm.weight": ones(HIDDEN),
            f"{at}.self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD),
            f"{at}.self_attn.q_norm.weight": ones(HEAD),
            f"{at}.self_attn.k_norm.weight": ones(HEAD),
            f"{at}.mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{at}.mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{at}.mlp.down_proj.weight": matrix(HIDDEN, INNER),
        }
    head = matrix(vocabulary, HIDDEN, 3.0)
    head[-len(SPECIAL) :] = 0.0  # a story is told to its last token: the model hardly ever ends by itself
    return out | {"lm_head.weight": head}


def _quantized(weights: dict[str, _Array], how: Quantized) -> dict[str, _Array]:
    """As a checkpoint in that format stores them: the matrices of the layers, by rounding to nearest."""
    stored = {"awq": _awq, "gptq": _gptq, "int8": _int8}[how]
    out: dict[str, _Array] = {}
    for name, tensor in weights.items():
        if name.endswith("_proj.weight"):
            out |= {f"{name.removesuffix('weight')}{part}": value for part, value in stored(tensor).items()}
        else:
            out[name] = tensor
    return out


def _awq(weight: _Tensor) -> dict[str, _Array]:
    digits, scales = _in_four_bits(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    zeros = np.full((len(scales), weight.shape[0]), 8, np.uint32)
    return {"qweight": _packed(digits, order), "qzeros": _packed(zeros, order), "scales": scales.astype(np.float16)}


def _gptq(weight: _Tensor) -> dict[str, _Array]:
    digits, scales = _in_four_bits(weight)
    zeros = np.full((len(scales), weight.shape[0]), 7, np.uint32)  # its zeros are stored less one
    return {
        "qweight": np.ascontiguousarray(_packed(np.ascontiguousarray(digits.T), range(8)).T),
        "qzeros": _packed(zeros, range(8)),
        "scales": scales.astype(np.float16),
        "g_idx": (np.arange(weight.shape[1]) // GROUP).astype(np.int32),
    }


def _int8(weight: _Tensor) -> dict[str, _Array]:
    scales = np.abs(weight).max(axis=1, keepdims=True) / 127
    return {"weight": np.rint(weight / scales).astype(np.int8), "weight_scale": scales.astype(np.float32)}


def _in_four_bits(weight: _Tensor) -> tuple[npt.NDArray[np.uint32], _Tensor]:
    """Rows of inputs and columns of outputs, digits from 0 to 15 around 8, and the scale of each group of rows."""
    groups = weight.T.reshape(-1, GROUP, weight.shape[0])
    scales = np.abs(groups).max(axis=1) / 7
    digits = np.rint(groups / scales[:, None]) + 8
    return digits.reshape(weight.shape[1], weight.shape[0]).astype(np.uint32), scales


def _packed(digits: npt.NDArray[np.uint32], order: Iterable[int]) -> npt.NDArray[np.int32]:
    """Eight neighbours of a row in 32 bits, the lowest first, taken in this order."""
    eights = digits.reshape(len(digits), -1, 8)
    words = np.zeros(eights.shape[:2], np.uint32)
    for at, column in enumerate(order):
        words |= eights[..., column] << np.uint32(4 * at)
    return words.view(np.int32)


_DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int8": "I8", "uint8": "U8"}


def write_safetensors(path: Path, tensors: Mapping[str, _Array]) -> None:
    """The format: the length of the header, the header in JSON, the bytes of one tensor after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        kind = _DTYPES[tensor.dtype.name]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def learning_text() -> str:
    """A text to learn words from that hardly ever changes: the model of today is the one of tomorrow."""
    return (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(make_tiny_model(Path(sys.argv[1]), text=learning_text()))
