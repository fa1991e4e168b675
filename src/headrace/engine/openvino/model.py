"""A model in OpenVINO GenAI, as `Batch` wants it. The only file that knows the library, and only the child imports it.

What it does not do well is not offered: seeds (all requests of a pipeline share one source of randomness), the bias of
single tokens, and how many tokens of a prompt were found in the prefix cache. Whatever it would refuse only in a step
must be refused before: a step that fails is everybody's, and may crash.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import openvino
import openvino_genai as library

from headrace.engine.answer.detokenise import pieces_by_id, without_sentencepiece
from headrace.engine.openvino.parameters import OpenVinoParameters
from headrace.engine.stepped.lines import Generate, Sampling
from headrace.engine.stepped.shapes import grammar_of
from headrace.engine.stepped.tokens import fitting, prompt_tokens, said_tokens

_BLOCK = 32  # tokens of a block of the cache; on the CPU that is the library's choice
_CHOICE = ("temperature", "top_p", "top_k", "min_p")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_REASONS = {"STOP": "stop", "LENGTH": "length", "TOOL_CALL": "stop"}


class OpenVinoModel:
    """Loads the model, which takes seconds. Raises RuntimeError in the library's words, ValueError in ours."""

    def __init__(self, parameters: OpenVinoParameters) -> None:
        self._pipeline = library.ContinuousBatchingPipeline(
            parameters.model_path,
            _scheduling(parameters),
            "CPU",
            _computing(parameters),
        )
        self._tokenizer = OpenVinoTokenizer(self._pipeline.get_tokenizer())
        self._number = 0
        self.pieces = self._tokenizer.pieces()

    def tokens(self, request: Generate) -> list[int]:
        return prompt_tokens(request, self._tokenizer) + said_tokens(request.continued, self._tokenizer)

    def add(self, tokens: list[int], request: Generate, *, max_tokens: int) -> "OpenVinoGeneration":
        self._number += 1
        ids = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
        try:
            handle = self._pipeline.add_request(self._number, ids, self._config(request.sampling, max_tokens))
        except RuntimeError as exc:
            raise ValueError(str(exc)) from exc
        return OpenVinoGeneration(handle)

    def step(self) -> None:
        self._pipeline.step()

    def _config(self, sampling: Sampling, max_tokens: int) -> Any:
        """The model's own settings, and over them what was asked for."""
        config = self._pipeline.get_config()
        grammar = grammar_of(sampling)
        if grammar is not None:
            config.structured_output_config = library.StructuredOutputConfig(grammar=grammar)
        config.update_generation_config(
            max_new_tokens=max_tokens, **_choosing(sampling), **_asked(sampling, _PENALTIES)
        )
        return config


class OpenVinoTokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, special: bool) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0].tolist()
        except RuntimeError as exc:
            raise ValueError(f"The text cannot be made tokens: {exc}") from exc
        return ids

    def resume(self, text: str) -> list[int]:
        return self.encode(text, special=False)

    def write(self, history: Sequence[dict[str, Any]]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(list(history), add_generation_prompt=True))
        except RuntimeError as exc:
            raise ValueError(f"The model's chat template cannot write these messages: {exc}") from exc

    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token id."""
        vocabulary = self._tokenizer.get_vocab()
        ids = range(max(vocabulary.values()) + 1)
        shown = self._tokenizer.decode([[token] for token in ids], skip_special_tokens=True)
        silent = {token for piece, token in vocabulary.items() if not shown[token] and _is_text(piece)}
        pieces = pieces_by_id(vocabulary, silent)
        return fitting((pieces, without_sentencepiece(pieces)), self)


def _is_text(piece: bytes) -> bool:
    """Not a part of a character, which shows nothing on its own either."""
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


def _choosing(sampling: Sampling) -> dict[str, Any]:
    """How a token is chosen among the likely ones. To the library greedy is no temperature, but a way of its own."""
    asked = _asked(sampling, _CHOICE)
    if asked.get("top_k", 1) < 1:
        del asked["top_k"]  # no limit, as with the other engines
    if asked.get("temperature") == 0:
        return {"do_sample": False}
    return {**asked, "do_sample": True} if asked else {}


def _asked(sampling: Sampling, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(sampling, name)) is not None}


class OpenVinoGeneration:
    cached_tokens = 0  # the library does not say

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def read(self) -> tuple[list[int], str | None]:
        ids: list[int] = []
        reason = None
        while self._handle.can_read():
            for output in self._handle.read().values():
                ids += output.generated_ids
                reason = _REASONS.get(output.finish_reason.name, reason)
        return ids, reason

    def cancel(self) -> None:
        self._handle.cancel()


def _computing(parameters: OpenVinoParameters) -> dict[str, Any]:
    """In 32 bits also where the processor has bfloat16, which the library would take: with that, a text that is read
    again is another one than when it was said, and a cut answer goes on differently."""
    return {
        "KV_CACHE_PRECISION": parameters.kv,
        "INFERENCE_NUM_THREADS": parameters.threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }


def _scheduling(parameters: OpenVinoParameters) -> Any:
    """Blocks for every slot, so that no answer is put off in the middle. Those that are free remember prompts."""
    scheduling = library.SchedulerConfig()
    scheduling.enable_prefix_caching = True
    scheduling.dynamic_split_fuse = True
    scheduling.max_num_batched_tokens = parameters.batch_tokens
    scheduling.max_num_seqs = parameters.slots
    scheduling.num_kv_blocks = parameters.slots * -(-parameters.context // _BLOCK)
    return scheduling
