"""How the next token is chosen: the model's scores, what was asked for, and chance.

Every answer has its own source of chance, so a seed keeps its promise whoever else is answered.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from headrace.engine.stepped.lines import Sampling
from headrace.engine.transformers.model.shape import Shape

_LARGEST = 100.0  # of a penalty or a bias, either way


class Chooser:
    """Of one answer to `prompt`. `defaults` is the model's own generation config. Raises ValueError for numbers that
    make no sense."""

    def __init__(
        self, sampling: Sampling, *, defaults: Any, prompt: Sequence[int], vocabulary: int, shape: Shape | None
    ) -> None:
        asked = _completed(sampling, defaults)
        _require_sense(asked, vocabulary)
        self._temperature = _bounded(1.0 if asked.temperature is None else asked.temperature)
        self._top_p, self._top_k, self._min_p = asked.top_p, asked.top_k, asked.min_p
        self._penalties = _Penalties(asked, prompt, vocabulary) if _penalised(asked) else None
        self._bias = asked.logit_bias or {}
        self._shape = shape
        self._chance = torch.Generator()
        if sampling.seed is None:
            self._chance.seed()
        else:
            self._chance.manual_seed(sampling.seed)

    def __call__(self, scores: torch.Tensor) -> int | None:
        """The next token, for the scores of the whole vocabulary. None if the grammar allows none."""
        scores = scores.to("cpu", torch.float32, copy=True)
        if self._penalties is not None:
            self._penalties.apply(scores)
        for token, bias in self._bias.items():
            scores[token] += bias
        if self._shape is not None:
            self._shape.restrict(scores)
        best = scores.max()
        if not torch.isfinite(best):
            return None
        token = int(scores.argmax()) if self._temperature == 0 else self._drawn(scores - best)
        self._remember(token)
        return token

    def _drawn(self, scores: torch.Tensor) -> int:
        """By chance, among the likely ones. The greatest score is 0."""
        scores = scores / self._temperature
        if self._top_k is not None and 0 < self._top_k < scores.numel():
            scores[scores < scores.topk(self._top_k).values[-1]] = -math.inf
        shares = scores.softmax(-1)
        if self._min_p is not None:
            shares[shares < self._min_p * shares.max()] = 0.0
        if self._top_p is not None and self._top_p < 1:
            _keep_likeliest(shares, self._top_p)
        return int(torch.multinomial(shares, 1, generator=self._chance))

    def _remember(self, token: int) -> None:
        if self._penalties is not None:
            self._penalties.count(token)
        if self._shape is not None:
            self._shape.accept(token)


class _Penalties:
    """A repetition counts in the prompt too; presence and frequency are about the answer."""

    def __init__(self, asked: Sampling, prompt: Sequence[int], vocabulary: int) -> None:
        self._repetition = asked.repetition_penalty or 1.0
        self._presence = asked.presence_penalty or 0.0
        self._frequency = asked.frequency_penalty or 0.0
        self._counts = torch.zeros(vocabulary)
        self._seen = torch.zeros(vocabulary, dtype=torch.bool)
        self._seen[torch.tensor(list(prompt), dtype=torch.long)] = True

    def apply(self, scores: torch.Tensor) -> None:
        seen = scores[self._seen]
        scores[self._seen] = torch.where(seen > 0, seen / self._repetition, seen * self._repetition)
        scores -= self._frequency * self._counts + self._presence * (self._counts > 0)

    def count(self, token: int) -> None:
        self._counts[token] += 1
        self._seen[token] = True


def _bounded(temperature: float) -> float:
    """Numbers of 32 bits know nothing smaller or larger that would make another choice."""
    return min(max(temperature, 1e-6), 1e6) if temperature else 0.0


def _keep_likeliest(shares: torch.Tensor, part: float) -> None:
    """The fewest that have so large a part of the whole between them; the likeliest in any case."""
    ordered, tokens = shares.sort(descending=True)
    enough = ordered.cumsum(-1) >= part * ordered.sum()
    shares[tokens[1:][enough[:-1]]] = 0.0


def _completed(sampling: Sampling, defaults: Any) -> Sampling:
    """What was asked, and over the rest the model's own settings: greedy, unless they or the request draw lots."""
    own = {name: getattr(defaults, name, None) for name in ("temperature", "top_p", "top_k", "min_p")}
    own["repetition_penalty"] = getattr(defaults, "repetition_penalty", None)
    draws = getattr(defaults, "do_sample", False) or any(
        getattr(sampling, name) is not None for name in ("temperature", "top_p", "top_k", "min_p")
    )
    if not draws:
        own["temperature"] = 0.0
    values = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return Sampling(**{name: own.get(name) if value is None else value for name, value in values.items()})


def _penalised(asked: Sampling) -> bool:
    return bool(asked.presence_penalty or asked.frequency_penalty) or asked.repetition_penalty not in (None, 1.0)


def _require_sense(asked: Sampling, vocabulary: int) -> None:
    bounds = {
        "temperature": (0.0, math.inf),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-_LARGEST, _LARGEST),
        "frequency_penalty": (-_LARGEST, _LARGEST),
        "repetition_penalty": (1 / _LARGEST, _LARGEST),
    }
    for name, (least, most) in bounds.items():
        value = getattr(asked, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"`{name}` is {value}, but it lies between {least:g} and {most:g}.")
    for token, bias in (asked.logit_bias or {}).items():
        if not 0 <= token < vocabulary:
            raise ValueError(f"`logit_bias` names token {token}, but the model has {vocabulary}.")
        if not -_LARGEST <= bias <= _LARGEST:
            raise ValueError(f"`logit_bias` of token {token} is {bias}, but it lies between -100 and 100.")
