"""What smaller weights cost and buy: memory, tokens per second, and how much of what the model says stays the same.

    scripts/transformers                              # once: the environment with PyTorch
    python -m bench.weights
    python -m bench.weights --quick                   # a look: the first tokens of the text, short answers
    python -m bench.weights --only full,nf4,Q4_1

The model is SmolLM2 135M. On the package index its weights are a GGUF file of 4 and 8 bits; full precision is here
what these are when dequantised, and all other rows but that file's are quantised from it. Each row is a process of its
own, one after the other. Without the environment there are the installed file's rows only, and the table says so.
"""

import argparse
import asyncio
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import msgspec

from bench import weights_llamacpp
from bench.perplexity import TEXT, same_until, windows
from bench.process import environment, say, scratch
from bench.report import host, versions
from bench.rivals import ROOT, package_versions
from bench.telling import Telling
from bench.weights_row import OPENINGS, Dequantise, Job, Requantise, Row, Speak, Task
from headrace.engine import models
from headrace.engine.cores import usable_cores

PYTHON = ROOT / ".venvs" / "transformers" / "bin" / "python"
FULL, INSTALLED = "full", "Q4_1"
TORCH, MADE = (FULL, "int8", "nf4"), ("F16", "Q8_0", "Q4_0")
WITHOUT_TORCH = (INSTALLED, "openvino-Q4_1")
OPENVINO = {"openvino-Q8_0": "Q8_0", "openvino-Q4_1": INSTALLED}
TITLES = {
    FULL: "transformers, full precision (32 bits)",
    "int8": "transformers, INT8 (torchao)",
    "nf4": "transformers, nf4 with double quantisation (bitsandbytes)",
    "F16": "llama.cpp, F16",
    "Q8_0": "llama.cpp, Q8_0",
    "Q4_0": "llama.cpp, Q4_0",
    INSTALLED: "llama.cpp, Q4_1, as installed",
    "openvino-Q8_0": "OpenVINO, Q8_0",
    "openvino-Q4_1": "OpenVINO, Q4_1, as installed",
}
LACKING = "scripts/transformers makes the environment with PyTorch, and OpenVINO comes with headrace[openvino]"
COMMAND = ("python", "-m", "bench.weights")
PACKAGES = ("torch", "transformers", "torchao", "bitsandbytes", "gguf")
THREADS = max(1, usable_cores() - 1)


def available() -> list[str]:
    """The rows whose libraries are installed."""
    torch, openvino = PYTHON.exists(), find_spec("openvino_genai") is not None
    return [kind for kind in TITLES if (torch or kind in WITHOUT_TORCH) and (openvino or kind not in OPENVINO)]


def measured(kinds: list[str], *, quick: bool) -> dict[str, Row]:
    """Each kind's row, one after the other. Installs the model if need be."""
    installed = models.install("smollm2")
    task = asyncio.run(_task(installed, quick))
    with scratch() as folder:
        if set(kinds) & set(TORCH):
            say("dequantising")
            in_torch(Dequantise(source=str(installed), folder=str(folder / "full")))
        return {kind: _measured(kind, installed, folder, task) for kind in kinds}


async def _task(installed: Path, quick: bool) -> Task:
    tokens = await weights_llamacpp.tokens_of(installed, TEXT.read_text())
    return Task(
        windows=windows(tokens, size=64 if quick else 512, count=1 if quick else 8),
        openings=OPENINGS[:2] if quick else OPENINGS,
        tokens=12 if quick else 64,
        threads=THREADS,
    )


def _measured(kind: str, installed: Path, folder: Path, task: Task) -> Row:
    if kind in TORCH:
        told = in_torch(Speak(folder=str(folder / "full"), weights=kind, task=task))
        row = msgspec.json.decode(told, type=Row)
    elif kind in OPENVINO:
        from bench import weights_openvino

        row = weights_openvino.served(_file(OPENVINO[kind], installed, folder), task)
    else:
        row = weights_llamacpp.served(_file(kind, installed, folder), task)
    say(f"{kind}: {row.rate:.1f} tokens/s, perplexity {row.foretold.perplexity:.2f}")
    return row


def _file(kind: str, installed: Path, folder: Path) -> Path:
    """Made once. The installed one is what it is."""
    path = folder / f"{kind}.gguf"
    if kind == INSTALLED:
        return installed
    if not path.exists():
        in_torch(Requantise(source=str(installed), target=str(path), kind=kind))
    return path


def in_torch(job: Job) -> bytes:
    """What the process with PyTorch answers. Raises RuntimeError with the end of what it said instead."""
    command = [str(PYTHON), "-m", "bench.weights_torch"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), input=msgspec.json.encode(job), capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


def table(rows: Mapping[str, Row]) -> str:
    """Agreement is with the row in full precision; '-' where that was not measured."""
    full = rows.get(FULL)
    lines = [
        "| weights | file, MiB | process, MiB | tokens/s | perplexity | next token as in full | answers as in full |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, row in rows.items():
        token, answers = _agreement(row, full) if full is not None else ("-", "-")
        lines.append(
            f"| {TITLES[kind]} | {row.weights_mib:.0f} | {row.memory_mib:.0f} | {row.rate:.1f} "
            f"| {row.foretold.perplexity:.2f} | {token} | {answers} |"
        )
    return "\n".join(lines)


def _agreement(row: Row, full: Row) -> tuple[str, str]:
    shares = [
        same_until(mine, theirs) / max(1, len(mine), len(theirs))
        for mine, theirs in zip(row.answers, full.answers, strict=True)
    ]
    token = f"{row.foretold.agreement(full.foretold):.1%}" if row.foretold.likeliest else "-"
    return token, f"{mean(shares):.0%}"


def notes(rows: Mapping[str, Row]) -> str:
    places = next(len(row.foretold.logprobs) for row in rows.values())
    lines = [
        f"- Perplexity: {places} tokens of the first chapter of Middlemarch, up to 512 at a time. Next token: the "
        "share of them where the same one was likeliest. Answers: the part of a greedy answer before it differs.",
        "- Full precision is the installed GGUF file (matrices in Q4_1, embeddings in Q8_0) dequantised, so that file "
        "loses nothing by its weights: in llama.cpp its row differs by rounding. All others are made from it. OpenVINO "
        "reads Q4_1 with a loss of its own.",
        "- File: for transformers what PyTorch writes of the model, whose embeddings stay in 32 bits. Process: PSS "
        "after the answers. One stream through Headrace's engine, greedy, the KV cache not quantised, "
        f"{THREADS} thread{'s' if THREADS > 1 else ''}.",
    ]
    if len(available()) < len(TITLES):
        lines.append(f"- Of the other rows: {LACKING}.")
    return "\n".join(lines)


def libraries() -> str:
    """In both environments."""
    there = package_versions(PYTHON, PACKAGES) if PYTHON.exists() else {}
    return ", ".join(
        [versions(("xllamacpp", "openvino-genai"))[:-1], *(f"{name} {version}" for name, version in there.items())]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Weights in fewer bits: memory, tokens/s and quality.")
    parser.add_argument("--quick", action="store_true", help="the first tokens of the text and two short answers")
    parser.add_argument("--only", help=f"some of {', '.join(TITLES)}, with commas between them")
    parser.add_argument("--write", action="store_true", help="put the table into bench/RESULTS.md")
    options = parser.parse_args()
    everything = available()
    kinds = options.only.split(",") if options.only else everything
    if unknown := [kind for kind in kinds if kind not in TITLES]:
        parser.error(f"there are no rows {', '.join(unknown)}; there are {', '.join(TITLES)}")
    if needy := [kind for kind in kinds if kind not in everything]:
        parser.error(f"{', '.join(needy)}: {LACKING}")
    tell = Telling("Weights in fewer bits", shlex.join(COMMAND))
    tell(f"{host()} {libraries()}.\n")
    rows = measured(kinds, quick=options.quick)
    tell(f"{table(rows)}\n\n{notes(rows)}")
    if options.write:
        tell.write("weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
