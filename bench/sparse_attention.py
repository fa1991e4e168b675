"""OpenVINO's sparse attention on a long prompt: how much sooner the first token comes, and what is lost by it.

    python -m bench.sparse_attention              # 3,000 tokens, five prompts
    python -m bench.sparse_attention --quick      # a look: 512 tokens, one prompt, in steps as the engine takes them

The library is driven by hand: its tri-shape (a prompt's tokens attend to the first ones and the latest) and XAttention
(to the blocks that seem to matter), each beside dense attention. A prompt is read in steps of 64 tokens, as Headrace's
engine does so that other answers go on meanwhile, in steps of 256, and in one. (Tri-shape leaves nothing out of what a
step itself brings, so in one step it is dense.) Everybody reads a prompt before the next one comes,
so that what else the machine does is everybody's.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy
import openvino
import openvino_genai as library

from bench.perplexity import TEXT, perplexity, same_until
from bench.process import say
from bench.report import host, versions
from bench.telling import Telling
from headrace.engine import models
from headrace.engine.cores import usable_cores

COMMAND = ("python", "-m", "bench.sparse_attention")
ANSWER = 32  # tokens
THREADS = max(1, usable_cores() - 1)
STEP = 64  # the engine's: one token for each of 16 slots, and 48 of a prompt
_BLOCK = 32  # tokens of a block of the cache; on the CPU that is the library's choice


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """`mode` is the library's name of it, none for dense attention. Prompts are read in parts of `step` tokens."""

    step: int
    mode: str = ""
    threshold: float = 0.8
    recent: int = 512

    @property
    def title(self) -> str:
        match self.mode:
            case "TRISHAPE":
                return f"tri-shape, first 128 and latest {self.recent}"
            case "XATTENTION":
                return f"XAttention, threshold {self.threshold:g}"
        return "dense"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`first` are the seconds until the first token. With an echo, `tokens` and `logprobs` begin with the prompt's."""

    first: float
    tokens: list[int]
    logprobs: list[float]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One answer for each prompt, and what the first prompt perplexes."""

    answers: list[Answer]
    perplexity: float


def pipeline(path: Path, setting: Setting, *, context: int, kv: str = "u8") -> Any:
    scheduling = library.SchedulerConfig()
    scheduling.enable_prefix_caching = False
    scheduling.dynamic_split_fuse = True
    scheduling.max_num_batched_tokens = setting.step
    scheduling.max_num_seqs = 1
    scheduling.num_kv_blocks = -(-context // _BLOCK) + 1
    if setting.mode:
        scheduling.use_sparse_attention = True
        scheduling.sparse_attention_config = _sparse(setting)
    computing = {
        "KV_CACHE_PRECISION": kv,
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": THREADS,
    }
    return library.ContinuousBatchingPipeline(str(path), scheduling, "CPU", computing)


def _sparse(setting: Setting) -> Any:
    sparse = library.SparseAttentionConfig()
    sparse.mode = library.SparseAttentionMode.__members__[setting.mode]
    sparse.xattention_threshold = setting.threshold
    sparse.num_retained_recent_tokens_in_cache = setting.recent
    return sparse


def answer(pipe: Any, prompt: Sequence[int], *, tokens: int, echo: bool = False) -> Answer:
    """Greedy. With `echo` the prompt's tokens are told too, with their log probabilities."""
    config = pipe.get_config()
    config.update_generation_config(
        max_new_tokens=tokens, do_sample=False, ignore_eos=True, logprobs=int(echo), echo=echo
    )
    ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
    began, first = time.perf_counter(), 0.0
    said, logprobs = list[int](), list[float]()
    handle = pipe.add_request(0, ids, config)
    while pipe.has_non_finished_requests():
        pipe.step()
        while handle.can_read():
            first = first or time.perf_counter() - began
            for output in handle.read().values():
                said += output.generated_ids
                logprobs += output.generated_log_probs
    return Answer(first=first, tokens=said, logprobs=logprobs)


def compare(path: Path, settings: Sequence[Setting], *, length: int, rounds: int) -> dict[Setting, Outcome]:
    """Everybody reads a prompt, then everybody the next. They are different parts of the text, which is not long."""
    pipes = {setting: pipeline(path, setting, context=length + ANSWER) for setting in settings}
    text = _text(next(iter(pipes.values())))
    starts = [turn * (len(text) - length) // max(1, rounds - 1) for turn in range(rounds)]
    taken: dict[Setting, list[Answer]] = {setting: [] for setting in settings}
    for pipe in pipes.values():
        answer(pipe, text[: 2 * _BLOCK], tokens=2)
    for start in starts:
        for setting, pipe in pipes.items():
            taken[setting].append(answer(pipe, text[start : start + length], tokens=ANSWER))
        say(f"prompt from {start}: " + " ".join(f"{answers[-1].first:.1f}s" for answers in taken.values()))
    return {
        setting: Outcome(answers=taken[setting], perplexity=_perplexity(pipes[setting], text[:length]))
        for setting in settings
    }


def _text(pipe: Any) -> list[int]:
    tokens: list[int] = pipe.get_tokenizer().encode(TEXT.read_text()).input_ids.data[0].tolist()
    return tokens


def _perplexity(pipe: Any, prompt: Sequence[int]) -> float:
    """Of all of the prompt but its first token, which is not foretold."""
    return perplexity(answer(pipe, prompt, tokens=1, echo=True).logprobs[1 : len(prompt)])


def table(outcomes: Mapping[Setting, Outcome]) -> str:
    """What is lost is told beside dense attention that reads in the same steps."""
    lines = [
        "| attention | step | first token | of dense | perplexity | next token as dense | answers as dense |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, outcome in outcomes.items():
        dense = outcomes[Setting(step=setting.step)]
        pairs = list(zip(outcome.answers, dense.answers, strict=True))
        ratio = median(one.first / other.first for one, other in pairs)
        next_same = sum(one.tokens[0] == other.tokens[0] for one, other in pairs)
        same = mean(same_until(one.tokens, other.tokens) / len(other.tokens) for one, other in pairs)
        lines.append(
            f"| {setting.title} | {setting.step} | {median(one.first for one, _ in pairs):.2f} s | {ratio:.2f} "
            f"| {outcome.perplexity:.2f} | {next_same} of {len(pairs)} | {same:.0%} |"
        )
    return "\n".join(lines)


def notes(length: int) -> str:
    return (
        f"SmolLM2 135M, prompts of {length:,} tokens from the first chapter of Middlemarch, one at a time; "
        f"{THREADS} thread{'s' if THREADS > 1 else ''}, 32 bits, KV cache u8. First token: the median; 'of dense' is "
        "the median of the ratios within a prompt. Perplexity: of one prompt's own tokens. Answers: the part of "
        f"{ANSWER} greedy tokens before the first difference."
    )


def settings_for(length: int, *, quick: bool) -> list[Setting]:
    if quick:
        return [Setting(step=STEP), Setting(step=STEP, mode="TRISHAPE", recent=64)]
    return [
        Setting(step=STEP),
        Setting(step=STEP, mode="TRISHAPE", recent=512),
        Setting(step=STEP, mode="TRISHAPE", recent=1024),
        Setting(step=STEP, mode="XATTENTION", threshold=0.95),
        Setting(step=256),
        Setting(step=256, mode="XATTENTION", threshold=0.95),
        Setting(step=length),
        Setting(step=length, mode="XATTENTION", threshold=0.8),
        Setting(step=length, mode="XATTENTION", threshold=0.95),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="OpenVINO's sparse attention on a long prompt, beside dense attention."
    )
    parser.add_argument("--quick", action="store_true", help="512 tokens, one prompt, two settings")
    parser.add_argument("--tokens", type=int, default=3000, help="of a prompt (the text has 4,318)")
    parser.add_argument("--rounds", type=int, default=5, help="prompts")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    options = parser.parse_args()
    length, rounds = (512, 1) if options.quick else (options.tokens, options.rounds)
    if not 256 <= length <= 4000 or rounds < 1:
        parser.error("a prompt has 256 to 4,000 tokens, and there is at least one round")
    tell = Telling("OpenVINO's sparse attention", shlex.join(COMMAND))
    tell(f"{host()} {versions(('openvino', 'openvino-genai'))}\n")
    settings = settings_for(length, quick=options.quick)
    tell(table(compare(models.install("smollm2"), settings, length=length, rounds=rounds)))
    tell(f"\n{notes(length)}")
    if options.write:
        tell.write("sparse attention")
    return 0


if __name__ == "__main__":
    sys.exit(main())
