"""What every row of the table of weights is asked, whichever library holds them, and what it says."""

import time
from statistics import median

import msgspec

from bench.perplexity import Foretold, Window
from headrace.engine.port import Engine, Finish, ModelRequest, Text

OPENINGS = (
    "Once upon a time in a small village",
    "The capital of France is",
    "Water boils when",
    "In the year 1871 a young woman",
    "To bake bread, one needs",
    "The most important thing about rivers is that",
    "She opened the letter and read:",
    "Mathematics is useful because",
)
"""What greedy answers continue."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """`windows` are foretold, `openings` continued greedily with so many `tokens`, by so many `threads`."""

    windows: list[Window]
    openings: tuple[str, ...]
    tokens: int
    threads: int

    @property
    def longest(self) -> int:
        return max(map(len, self.windows))


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_mib` is the PSS of the process that spoke, after it had; `rate` the median answer's tokens per second,
    from the question to its end."""

    weights_mib: float
    memory_mib: float
    rate: float
    answers: list[str]
    foretold: Foretold


class Dequantise(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The GGUF file `source` becomes `folder`, in 32 bits."""

    source: str
    folder: str


class Requantise(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The GGUF file `source` becomes the GGUF file `target`, its matrices of another `kind`."""

    source: str
    target: str
    kind: str


class Speak(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What is in `folder`, loaded with `weights`, does the task."""

    folder: str
    weights: str
    task: Task


Job = Dequantise | Requantise | Speak
"""What is asked of the process with PyTorch."""


async def spoken(engine: Engine, task: Task) -> tuple[float, list[str]]:
    """Tokens per second, and the answers; one before them warms up."""
    taken = [await _answer(engine, opening, task.tokens) for opening in (task.openings[0], *task.openings)][1:]
    return median(rate for rate, _ in taken), [text for _, text in taken]


async def _answer(engine: Engine, opening: str, tokens: int) -> tuple[float, str]:
    request = ModelRequest(prompt=opening, max_tokens=tokens, temperature=0.0)
    began, said = time.perf_counter(), list[str]()
    async with engine.stream(request) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Text):
                said.append(chunk.text)
            elif isinstance(chunk, Finish):
                return chunk.usage.output_tokens / (time.perf_counter() - began), "".join(said)
    raise RuntimeError("an answer had no end")
