"""Each answer by itself, with a cache of its own: one that is quantised, or that is saved and read again.

A step computes one token of every answer, or a part of a prompt that is still to be read, so that nobody waits for a
long one.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import Cache

from headrace.engine.stepped.lines import Generate
from headrace.engine.stepped.tokens import prompt_tokens, said_tokens
from headrace.engine.transformers.model.cache import new_cache, sees_everything
from headrace.engine.transformers.model.generation import TransformersGeneration
from headrace.engine.transformers.model.loaded import Loaded
from headrace.engine.transformers.model.states import States, said_before
from headrace.engine.transformers.parameters import TransformersParameters

_log = logging.getLogger(__name__)
_PROMPT_TOKENS = 128  # of one prompt, that a step reads


class SeparateModel:
    def __init__(self, loaded: Loaded, parameters: TransformersParameters) -> None:
        if not sees_everything(loaded.library.config):
            raise ValueError(
                "some of its layers see only a part of the text, so their state can be neither saved nor kept in 8 "
                "bits here: set neither engine.kv nor engine.snapshot_tokens"
            )
        self.pieces = loaded.pieces
        self._loaded = loaded
        self._kv = parameters.kv
        self._every = parameters.snapshot_tokens
        self._states = _states(parameters) if parameters.snapshot_tokens is not None else None
        self._answers: list[SeparateGeneration] = []

    def tokens(self, request: Generate) -> list[int]:
        prompt, rest = prompt_tokens(request, self._loaded.tokenizer), request.continued
        said: list[int] = []
        if rest and self._states is not None:
            said, rest = said_before(self._states.tokens(self._states.place(request)), prompt, rest, self.pieces)
        return prompt + said + said_tokens(rest, self._loaded.tokenizer)

    def add(self, tokens: list[int], request: Generate, *, max_tokens: int) -> "SeparateGeneration":
        generation = self._loaded.generation(tokens, request, max_tokens=max_tokens)
        cache = new_cache(self._loaded.library.config, self._kv)
        kept = None
        if self._states is not None and self._every is not None:
            kept = _Kept(self._states, self._states.place(request), every=self._every)
            kept.restore(cache, tokens)
        answer = SeparateGeneration(generation, tokens, cache, kept)
        self._answers.append(answer)
        return answer

    def step(self) -> None:
        self._answers = [answer for answer in self._answers if not answer.idle]
        with torch.inference_mode():
            for answer in self._answers:
                answer.advance(self._loaded)


class SeparateGeneration:
    def __init__(
        self, generation: TransformersGeneration, tokens: Sequence[int], cache: Cache, kept: "_Kept | None"
    ) -> None:
        self.cached_tokens: int = cache.get_seq_length()
        self._generation = generation
        self._tokens = list(tokens)
        self._cache = cache
        self._kept = kept

    @property
    def idle(self) -> bool:
        return self._generation.idle

    def read(self) -> tuple[list[int], str | None]:
        return self._generation.read()

    def cancel(self) -> None:
        self._generation.cancel()

    def advance(self, loaded: Loaded) -> None:
        """Read on, and say a token once everything is read."""
        at = self._cache.get_seq_length()
        part = self._tokens[at : at + _PROMPT_TOKENS]
        outcome = loaded.library(torch.tensor([part]), cache=self._cache, use_cache=True, logits_to_keep=1)
        if at + len(part) == len(self._tokens):
            self._say(self._generation.choose(outcome.logits[0, -1]))

    def _say(self, token: int | None) -> None:
        if self._kept is not None:
            self._keep(self._kept)
        if token is not None:
            self._tokens.append(token)

    def _keep(self, kept: "_Kept") -> None:
        if self._generation.over is not None:
            kept.forget()
        else:
            kept.save(self._cache, self._tokens)


class _Kept:
    """The state of one answer on disk, not older than `every` tokens."""

    def __init__(self, states: States, place: Path, *, every: int) -> None:
        self._states = states
        self._place = place
        self._every = every
        self._saved = 0

    def restore(self, cache: Cache, tokens: Sequence[int]) -> None:
        """As far as the saved tokens are these. The last one is read in any case: what follows it is asked for."""
        alike = _alike(self._states.tokens(self._place), tokens[:-1])
        if not alike:
            return
        try:
            layers = self._states.layers(self._place, len(cache.layers), tokens=alike)
        except (OSError, SafetensorError) as exc:
            _log.warning("a saved state could not be read, the text is read instead: %s", exc)
            return
        for layer, state in zip(cache.layers, layers, strict=True):
            layer.restore(state)
        self._saved = alike

    def save(self, cache: Cache, tokens: Sequence[int]) -> None:
        length = cache.get_seq_length()
        if length - self._saved < self._every:
            return
        self._saved = length
        try:
            self._states.save(self._place, tokens[:length], [layer.state() for layer in cache.layers])
        except (OSError, SafetensorError) as exc:
            _log.warning("the state of an answer could not be saved: %s", exc)

    def forget(self) -> None:
        try:
            self._states.forget(self._place)
        except OSError as exc:
            _log.warning("the state of an answer could not be deleted: %s", exc)


def _alike(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(some), len(others)))


def _states(parameters: TransformersParameters) -> States:
    """Weights that were written anew are another model."""
    path = Path(parameters.model_path)
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    written = [f"{file.resolve()} {file.stat().st_size} {os.stat(file).st_mtime_ns}" for file in files]
    return States(Path(parameters.snapshots), model="\n".join([*written, parameters.weights, parameters.kv]))
