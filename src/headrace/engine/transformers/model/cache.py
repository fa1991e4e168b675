"""The keys and values of one answer, layer by layer: as the model makes them, or in 8 bits.

The library's own quantised cache keeps the latest tokens in full and quantises all others again and again, so what a
token sees depends on how the text came in. Here a token's keys and values are rounded once, when they come, and are
never touched again: a text that is read again is the one that was said.
"""

from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from headrace.engine.transformers.parameters import Kv

Tensors = dict[str, torch.Tensor]
_TOKENS = -2  # the dimension along which tokens follow each other


def new_cache(config: Any, kv: Kv) -> Cache:
    layer = Int8Layer if kv == "int8" else FullLayer
    return Cache(layers=[layer() for _ in range(config.get_text_config().num_hidden_layers)])


def sees_everything(config: Any) -> bool:
    """Whether all layers look at the whole text. Others keep states that are not for every token."""
    return {type(layer) for layer in DynamicCache(config=config).layers} <= {DynamicLayer}


class FullLayer(DynamicLayer):  # type: ignore[misc]
    def state(self) -> Tensors:
        return {"keys": self.keys, "values": self.values}

    def restore(self, state: Tensors) -> None:
        self.update(state["keys"], state["values"])


class Int8Layer(DynamicLayer):  # type: ignore[misc]
    """A byte for each number, and one scale for each token and head."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: _Rounded | None = None
        self._values: _Rounded | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._keys = _followed(self._keys, _rounded(key_states))
        self._values = _followed(self._values, _rounded(value_states))
        self.is_initialized = True
        return self._keys.full(key_states.dtype), self._values.full(value_states.dtype)

    def get_seq_length(self) -> int:
        return 0 if self._keys is None else self._keys.numbers.shape[_TOKENS]

    def state(self) -> Tensors:
        if self._keys is None or self._values is None:
            return {}
        return {
            "keys": self._keys.numbers,
            "key_scales": self._keys.scales,
            "values": self._values.numbers,
            "value_scales": self._values.scales,
        }

    def restore(self, state: Tensors) -> None:
        self._keys = _Rounded(state["keys"], state["key_scales"])
        self._values = _Rounded(state["values"], state["value_scales"])
        self.is_initialized = True


class _Rounded:
    def __init__(self, numbers: torch.Tensor, scales: torch.Tensor) -> None:
        self.numbers = numbers
        self.scales = scales

    def full(self, dtype: torch.dtype) -> torch.Tensor:
        return self.numbers.to(dtype) * self.scales.to(dtype)


def _rounded(states: torch.Tensor) -> _Rounded:
    scales = (states.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(states.dtype).tiny)
    return _Rounded((states / scales).round().to(torch.int8), scales)


def _followed(before: _Rounded | None, more: _Rounded) -> _Rounded:
    if before is None:
        return more
    return _Rounded(
        torch.cat([before.numbers, more.numbers], _TOKENS), torch.cat([before.scales, more.scales], _TOKENS)
    )
