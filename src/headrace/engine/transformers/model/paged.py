"""Many answers in one batch: the library's own continuous batching, with a cache in pages and shared prefixes.

The library's manager is made for a thread of its own, which would only get into the way of this one: its processor is
driven from here, a step at a time. And its sampling is one for all requests, so each row of scores goes to the answer
whose row it is, and what comes back leaves the library only one token to choose.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from headrace.engine.stepped.lines import Generate
from headrace.engine.transformers.model.generation import TransformersGeneration
from headrace.engine.transformers.model.loaded import Loaded
from headrace.engine.transformers.parameters import TransformersParameters

_PAGE = 32  # tokens; only whole pages are shared by answers with the same beginning
PROMPT_TOKENS = 128  # of waiting prompts, that a step may read beside one token for every answer


class PagedModel:
    def __init__(self, loaded: Loaded, parameters: TransformersParameters) -> None:
        self.pieces = loaded.pieces
        self.tokens = loaded.tokens
        self._loaded = loaded
        self._rows = _Rows()
        self._manager: Any = loaded.library.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1), _configuration(parameters)
        )
        self._manager.logit_processor = self._rows.alone()
        with torch.inference_mode():
            self._processor: Any = self._manager._create_batch_processor()

    def add(self, tokens: list[int], request: Generate, *, max_tokens: int) -> "PagedGeneration":
        generation = self._loaded.generation(tokens, request, max_tokens=max_tokens)
        name = str(generation.number)
        self._rows.answers[name] = generation
        self._manager.add_request(
            tokens, request_id=name, max_new_tokens=max_tokens, eos_token_id=sorted(self._loaded.ends) or [-1]
        )
        return PagedGeneration(generation, self)

    def step(self) -> None:
        with torch.inference_mode():
            if self._processor.prepare_next_batch():
                self._note_what_was_found()
                self._processor._generation_step(self._loaded.library)
                self._processor.update_batch()
        self._forget_the_ended()

    def cancel(self, generation: TransformersGeneration) -> None:
        generation.cancel()
        self._manager.cancel_request(str(generation.number))

    def _note_what_was_found(self) -> None:
        """Who comes into a batch for the first time stands behind the pages that others have left it."""
        for request in self._processor.inputs_and_outputs.requests_in_batch:
            generation = self._rows.answers[request.state.request_id]
            if generation.cached_tokens is None:
                generation.cached_tokens = request.state.position_offset - request.query_length

    def _forget_the_ended(self) -> None:
        while (ended := self._manager.get_result(timeout=0)) is not None:
            if ended.error is not None:
                raise RuntimeError(ended.error)
        for name, generation in tuple(self._rows.answers.items()):
            if generation.idle:
                del self._rows.answers[name]


class PagedGeneration:
    def __init__(self, generation: TransformersGeneration, model: PagedModel) -> None:
        self._generation = generation
        self._model = model

    @property
    def cached_tokens(self) -> int:
        """Whole pages, and never the prompt's last token: what follows it is asked for."""
        return self._generation.cached_tokens or 0

    def read(self) -> tuple[list[int], str | None]:
        return self._generation.read()

    def cancel(self) -> None:
        self._model.cancel(self._generation)


class _Rows(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Whose row is whose, and what each of them chooses."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 - as the library has it
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.answers: dict[str, TransformersGeneration] = {}
        self._in_rows: list[TransformersGeneration] = []

    def alone(self) -> Any:
        """The list that the library wants, with nothing else in it."""
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self]))
        processors.tensors_required = 1
        return processors

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        self._in_rows = [self.answers[request.state.request_id] for request in requests_with_new_token]
        return torch.zeros(len(self._in_rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        chosen = torch.full_like(scores, -math.inf)
        for row, generation in enumerate(self._in_rows):
            chosen[row, generation.choose(scores[row])] = 0.0
        return chosen


def _configuration(parameters: TransformersParameters) -> ContinuousBatchingConfig:
    """Pages for every slot, so that no answer is put off in the middle."""
    return ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=parameters.slots * (-(-parameters.context // _PAGE) + 1),
        max_batch_tokens=parameters.slots + PROMPT_TOKENS,
        max_requests_per_batch=parameters.slots,
        safety_margin=0.0,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
