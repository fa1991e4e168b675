"""What a setting of the embedded engine buys and what it costs: saved states, the type of the cache, guesses ahead.

As in `engine_measures.py`, every function opens engines of its own and returns numbers by name.
"""

from pathlib import Path
from statistics import mean, median

from bench.engine_measures import Numbers, asked, embedded, timed
from bench.rivals import ROOT
from headrace.engine.llamacpp.engine import LlamaCppEngine
from headrace.engine.port import ModelRequest, Text, TokenLogprob


async def snapshots(quick: bool) -> Numbers:
    """What saving costs an answer that nothing happens to."""
    tokens = 64 if quick else 256
    rates: dict[int | None, float] = {}
    for every in (None, 64, 16):
        async with embedded(slots=1, context=1024, snapshot_tokens=every) as engine:
            await timed(engine, asked("Once upon a time", 8))
            pieces, _, _ = await timed(engine, asked("Once upon a time there was", tokens))
            rates[every] = len(pieces) / pieces[-1]
    return {f"tokens_per_s_{every or 'off'}": rate for every, rate in rates.items()} | {
        "cost_of_64": 1 - rates[64] / (rates[None] or 1.0)
    }


async def cache_types(quick: bool) -> Numbers:
    """The KV cache as q8_0, q4_0 and f16: memory; how long greedy answers agree with those of f16; and in a real text,
    how often the likeliest next token is the same one, and how far its log probability is off."""
    lengths, memory, said, likeliest = 48, {}, {}, {}
    prompts = [f"Fact number {number}: The capital of France is" for number in range(2 if quick else 12)]
    text = (ROOT / "docs" / "faq.md").read_text().split()
    places = range(16, 80 if quick else 640, 16)
    for kv in ("f16", "q8_0", "q4_0"):
        async with embedded(slots=4, context=4096, kv=kv) as engine:
            assert engine.pid is not None
            said[kv] = [(await timed(engine, asked(prompt, lengths)))[1] for prompt in prompts]
            likeliest[kv] = [await _likeliest(engine, " ".join(text[:place])) for place in places]
            memory[kv] = _anonymous_mib(engine.pid)
        async with embedded(slots=1, context=32, kv=kv) as engine:
            assert engine.pid is not None
            await timed(engine, asked("Once", 2))
            memory[kv] -= _anonymous_mib(engine.pid)
    out: Numbers = {f"{kv}_mib": mib for kv, mib in memory.items()}
    for kv in ("q8_0", "q4_0"):
        out[f"{kv}_over_f16"] = memory[kv] / memory["f16"]
        pairs = [(a, b) for a, b in zip(likeliest[kv], likeliest["f16"], strict=True) if a and b]
        out[f"{kv}_same_token"] = sum(a.token == b.token for a, b in pairs) / len(pairs)
        out[f"{kv}_logprob_off"] = mean(abs(a.logprob - b.logprob) for a, b in pairs if a.token == b.token)
        out[f"{kv}_agreement"] = median(_agreement(a, b) for a, b in zip(said[kv], said["f16"], strict=True))
    return out


async def _likeliest(engine: LlamaCppEngine, text: str) -> TokenLogprob | None:
    """The token that the model would say next; None for one without text."""
    async with engine.stream(ModelRequest(prompt=text, max_tokens=1, temperature=0.0, logprobs=1)) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text) and chunk.logprobs:
                return chunk.logprobs[0]
    return None


def _agreement(one: str, other: str) -> float:
    """The share of the text up to the first difference."""
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
    return same / max(1, len(one), len(other)) if one != other else 1.0


def _anonymous_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


async def guessing(quick: bool) -> Numbers:
    """Tokens/s with and without n-gram guesses, where the answer repeats the prompt and where it does not."""
    lines = "\n".join(f"item {number}: red, green, blue, yellow, {number * 7}" for number in range(12))
    prompts = {
        "repeating": f"{lines}\n\nThe same list again:\n\n{lines[:60]}",
        "story": "Once upon a time in a village",
    }
    rates: Numbers = {}
    for ngram in (False, True):
        async with embedded(slots=1, context=1024, ngram=ngram) as engine:
            for name, prompt in prompts.items():
                pieces, _, finish = await timed(engine, asked(prompt, 32 if quick else 128))
                tokens = finish.usage.output_tokens
                rates[f"{name}_{'ngram' if ngram else 'plain'}"] = tokens / (pieces[-1] - pieces[0])
    return rates | {f"{name}_gain": rates[f"{name}_ngram"] / rates[f"{name}_plain"] for name in prompts}
