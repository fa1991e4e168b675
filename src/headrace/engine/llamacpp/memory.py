"""What a model needs, known from its header before it is loaded; `engine/memory.py` says what there is.

The need was within 5 % of what the process came to hold, for two models, three types of cache and 512 to 32,768 tokens.
It is less for weights that llama.cpp lays out anew for the processor: on x86 with AVX2 those of Q4_0, IQ4_NL and Q4_K,
elsewhere and in other versions others, which only the library knows. The process then holds them twice, as memory of
its own and as pages of the file that it read them from: 210 MiB where 136 were foretold. The system takes those pages
back when it needs them, so the need is what must fit; but a limit of addresses (`ulimit -v`) counts both.

Bytes everywhere.
"""

from headrace.engine.gguf import Header
from headrace.engine.llamacpp.parameters import Pooling
from headrace.engine.memory import Need

_KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of one element; blocks of 32 carry a scale
_LIBRARY = 45 << 20  # what the process holds besides
_PER_TOKEN_OF_VOCABULARY = 250
_STEP = 256  # tokens: a slot has a multiple of so many
_WINDOWED = 5 / 6  # of the layers, in models that have a sliding window; the header does not say


def need(header: Header, *, file_size: int, context: int, slots: int, kv: str, whole_window: bool = False) -> Need:
    """Of a model whose `slots` hold `context` tokens each, and up to 255 more. `whole_window` keeps all of them where
    the model itself would look at the latest only."""
    layers = header.number("block_count", 0)
    heads = header.per_layer("attention.head_count_kv", header.number("attention.head_count", 1))
    width = header.number("embedding_length", 0) // max(1, header.number("attention.head_count", 1))
    lengths = header.number("attention.key_length", width) + header.number("attention.value_length", width)
    all_heads = sum(heads) if len(heads) == layers else heads[0] * layers
    held = -(-context // _STEP) * _STEP
    tokens: float = held
    window = header.number("attention.sliding_window", 0)
    if window and not whole_window:
        tokens = min(held, window) * _WINDOWED + held * (1 - _WINDOWED)
    return Need(
        weights=file_size,
        cache=int(all_heads * lengths * _KV_BYTES[kv] * tokens * slots),
        working=_LIBRARY + header.vocabulary * _PER_TOKEN_OF_VOCABULARY,
    )


def need_to_embed(header: Header, *, longest: int, pooling: Pooling) -> Need:
    """Beside the weights, for texts of up to `longest` tokens. Where they cannot be read in parts, every token of the
    longest has its logits and its place in the tables of attention at once."""
    one = need(header, file_size=0, context=longest, slots=1, kv="f16")
    if pooling == "last":
        return one
    heads, width = header.number("attention.head_count", 1), header.number("feed_forward_length", 0)
    causal = bool(header.values.get(f"{header.architecture}.attention.causal", True))
    logits = header.vocabulary if causal else 0
    return one + Need(weights=0, cache=0, working=4 * longest * (heads * longest + 2 * width + 2 * logits))
