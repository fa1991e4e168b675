"""A model in OpenVINO GenAI, as `Batch` wants it. The only file that knows the library, and only the child imports it.

What it does not do well is not offered: seeds (all requests of a pipeline share one source of randomness), the bias of
single tokens, and how many tokens of a prompt were found in the prefix cache. Whatever it would refuse only in a step
must be refused before: a step that fails is everybody's, and may crash.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
import openvino
import openvino_genai as library

from headrace.engine.answer.detokenise import Detokeniser, pieces_by_id, without_sentencepiece
from headrace.engine.grammars.json_schema import compact_grammar
from headrace.engine.grammars.regex import regex_grammar
from headrace.engine.openvino.grammar import readable
from headrace.engine.openvino.lines import Generate, OpenVinoParameters, Sampling
from headrace.messages import Message, ToolRequest

_BLOCK = 32  # tokens of a block of the cache; on the CPU that is the library's choice
_SAMPLE = "Hello world,\n  你好 😀 é\u0301 {}"
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
            {"KV_CACHE_PRECISION": parameters.kv, "INFERENCE_NUM_THREADS": parameters.threads},
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._number = 0
        self.pieces: Sequence[bytes] = self._pieces()

    def tokens(self, request: Generate) -> list[int]:
        if request.prompt is not None:
            prompt = self._encode(request.prompt, special=True)
        else:
            prompt = self._encode(self._written(request.messages), special=False)
        if request.continued:  # encoded by itself, as its first token was chosen: nothing may be joined at the seam
            prompt += self._encode(request.continued, special=False)
        if not prompt:
            raise ValueError("The prompt is empty.")
        return prompt

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

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0].tolist()
        except RuntimeError as exc:
            raise ValueError(f"The text cannot be made tokens: {exc}") from exc
        return ids

    def _written(self, messages: Sequence[Message]) -> str:
        """The conversation as the model's template writes it."""
        history = [_entry(message) for message in messages]
        try:
            return str(self._tokenizer.apply_chat_template(history, add_generation_prompt=True))
        except RuntimeError as exc:
            raise ValueError(f"The model's chat template cannot write these messages: {exc}") from exc

    def _config(self, sampling: Sampling, max_tokens: int) -> Any:
        """The model's own settings, and over them what was asked for."""
        config = self._pipeline.get_config()
        grammar = _grammar(sampling)
        if grammar is not None:
            config.structured_output_config = library.StructuredOutputConfig(grammar=grammar)
        config.update_generation_config(
            max_new_tokens=max_tokens, **_choosing(sampling), **_asked(sampling, _PENALTIES)
        )
        return config

    def _pieces(self) -> list[bytes]:
        """The bytes of each token id, tried on a text that has all that is difficult in it."""
        vocabulary = self._tokenizer.get_vocab()
        ids = range(max(vocabulary.values()) + 1)
        shown = self._tokenizer.decode([[token] for token in ids], skip_special_tokens=True)
        silent = {token for piece, token in vocabulary.items() if not shown[token] and _is_text(piece)}
        pieces = pieces_by_id(vocabulary, silent)
        sample = self._encode(_SAMPLE, special=False)
        for candidate in (pieces, without_sentencepiece(pieces)):
            text = Detokeniser(candidate)
            if (text.feed(sample) + text.end()).lstrip() == _SAMPLE:
                return candidate
        raise ValueError("its vocabulary is written in a way that is not known")


def _is_text(piece: bytes) -> bool:
    """Not a part of a character, which shows nothing on its own either."""
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


def _entry(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        entry["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.call_id is not None:
        entry["tool_call_id"] = message.call_id
    return entry


def _call(call: ToolRequest) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _choosing(sampling: Sampling) -> dict[str, Any]:
    """How a token is chosen among the likely ones. To the library greedy is no temperature, but a way of its own."""
    asked = _asked(sampling, _CHOICE)
    if asked.get("top_k", 1) < 1:
        del asked["top_k"]  # no limit, as with the other engines
    if asked.get("temperature") == 0:
        return {"do_sample": False}
    return {**asked, "do_sample": True} if asked else {}


def _grammar(sampling: Sampling) -> str | None:
    """What shapes the answer. Schemas become grammars here: the library's own JSON has room for blanks everywhere, and
    small models fill it. Raises ValueError for what the library could not compile."""
    grammar = sampling.grammar
    if sampling.regex is not None:
        grammar = regex_grammar(sampling.regex)
    if sampling.json_schema is not None:
        grammar = compact_grammar(msgspec.json.decode(sampling.json_schema))
        if grammar is None:
            raise ValueError("The schema asks for more than can be made a grammar, such as a pattern or a bound.")
    return None if grammar is None else readable(grammar)


def _asked(sampling: Sampling, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(sampling, name)) is not None}


class OpenVinoGeneration:
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


def _scheduling(parameters: OpenVinoParameters) -> Any:
    """Blocks for every slot, so that no answer is put off in the middle. Those that are free remember prompts."""
    scheduling = library.SchedulerConfig()
    scheduling.enable_prefix_caching = True
    scheduling.dynamic_split_fuse = True
    scheduling.max_num_batched_tokens = parameters.batch_tokens
    scheduling.max_num_seqs = parameters.slots
    scheduling.num_kv_blocks = parameters.slots * -(-parameters.context // _BLOCK)
    return scheduling
