"""vLLM without HTTP: its `AsyncLLM` in this process, its computation in a process of its own.

It saves the hop and the second server to operate, and nothing else: replicas, restarts and rolling updates are easier
with `vllm serve` behind `OpenAIEngine`. What leaves vLLM here is text: the parsers for the calls of every model family
are its server's, so tools are called by schema (`schema_calls.py`).

Needs `headrace[vllm]`, which is vLLM for CUDA. On a CPU it is another package of another name: docs/vllm.md.
"""

import asyncio
import importlib.util
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.engine.admission import require_supported
from headrace.engine.answer.text import AnswerText
from headrace.engine.answer.think_tags import ThinkTags
from headrace.engine.line.engine_line import EngineLine
from headrace.engine.openai.request import chat_message
from headrace.engine.port import PARAMETERS, Capabilities, Chunk, ModelRequest
from headrace.engine.refusals import engine_error
from headrace.engine.schema_calls import by_schema, calls_from_json, is_by_schema
from headrace.engine.seam import Seam, split_blanks
from headrace.engine.vllm.answer import VllmAnswer, sampling_fields
from headrace.engine.warm_up import say
from headrace.errors import ConfigError, EngineDied, EngineError, EngineRejected, EngineUnavailable


class VllmEngine:
    """Answers with `model`, a folder or a name on the Hugging Face hub. Entering it loads the weights, which takes a
    minute or more, and asks for one token: what this hardware cannot compute is found then and not by the first user.

    `slots` answers are generated at once, each with up to `context` tokens, prompt included (None for the model's own).
    `adapters` are folders of LoRA weights, by the names under which requests ask for them (`ModelRequest.model`).
    `options` are vLLM's engine arguments, by their names in Python: `{"quantization": "awq"}`.
    """

    name = "vllm"

    def __init__(
        self,
        model: str | Path,
        *,
        name: str | None = None,
        slots: int = 256,
        context: int | None = None,
        adapters: Mapping[str, Path] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = name or Path(model).name
        self.capabilities = Capabilities(
            tools=True,
            sampling=PARAMETERS,
            logprobs=True,
            grammar=True,
            regex=True,
            json_schema=True,
            thinking=True,
            raw_prompt=True,
            continuation=True,
            context_tokens=context,
            slots=slots,
        )
        self._arguments = {
            "model": str(model),
            "max_num_seqs": slots,
            "max_model_len": context,
            "scheduling_policy": "priority",
            **({"enable_lora": True} if adapters else {}),
            **(options or {}),
        }
        self._adapters = dict(adapters or {})
        self._line = EngineLine(slots)
        self._llm: Any = None

    async def __aenter__(self) -> "VllmEngine":
        """Raises ConfigError, EngineUnavailable."""
        if importlib.util.find_spec("vllm") is None:
            hint = "Install it: pip install 'headrace[vllm]' for CUDA; docs/vllm.md says how for CPUs."
            raise ConfigError("vLLM is not installed.", hint=hint)
        try:
            self._llm = await asyncio.to_thread(_load, self._arguments)
            await self.warm_up()
        except BaseException as exc:
            await self.__aexit__()
            if isinstance(exc, Exception):
                raise _unusable(self.model, exc) from exc
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # else it takes the end of the engine's process for a crash
        await asyncio.to_thread(llm.shutdown)
        llm.shutdown = _nothing  # it shuts down again when it is collected, which may be after its modules have gone

    async def warm_up(self) -> None:
        """One token, to know that the model answers. Raises what `stream` raises."""
        await say(self, tokens=1)

    @property
    def busy(self) -> int:
        """Answers that are generated or wait."""
        return 0 if self._llm is None else int(self._llm.get_num_unfinished_requests())

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        require_supported(request, self.capabilities, engine=self.name)
        if self._llm is None:
            raise EngineUnavailable("The engine is not open.", hint="Enter it first: `async with engine:`.")
        async with self._line.placed(request, self._whole(request)) as chunks:
            yield chunks

    @asynccontextmanager
    async def _whole(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        spoken = by_schema(request) if request.prompt is None else request
        async with aclosing(self._answer(spoken)) as chunks:
            if not is_by_schema(request, spoken):
                yield chunks
                return
            async with aclosing(calls_from_json(chunks)) as calls:
                yield calls

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """Closing it aborts the request in vLLM, wherever it is."""
        clock = asyncio.get_running_loop().time
        said, blanks = _beginning(request)
        text = AnswerText(start=ThinkTags() if request.continued is None else Seam(blanks))
        answer = VllmAnswer(text, likely=request.logprobs or 0, started=clock())
        try:
            adapter = self._adapter(request.model)
            prompt = await self._prompt(request, said)
            # An id of its own for every attempt: a late abort of one must not hit the next.
            outputs = self._llm.generate(
                prompt, _sampling(request), uuid.uuid4().hex, priority=request.priority, lora_request=adapter
            )
            async with aclosing(outputs):
                async for output in outputs:
                    for chunk in answer.read(output, clock()):
                        yield chunk
        except EngineError:
            raise
        except Exception as exc:
            raise _meaning(exc, begun=answer.begun) from exc
        yield answer.finish(clock())

    def _adapter(self, name: str | None) -> Any:
        """vLLM's request for the adapter of that name, None for the model itself. Raises EngineRejected."""
        if name is None or name == self.model:
            return None
        if name not in self._adapters:
            hint = f"It serves {', '.join((self.model, *self._adapters))}."
            raise EngineRejected(f"vLLM has no model {name!r} in this process.", hint=hint)
        from vllm.lora.request import LoRARequest

        number = 1 + list(self._adapters).index(name)
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(self._adapters[name]))

    async def _prompt(self, request: ModelRequest, said: str) -> Any:
        """The tokens that the model reads: rendered and counted in vLLM's threads."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt
        from vllm.renderers.params import ChatParams

        renderer = self._llm.renderer
        extras = None if request.scope is None else {"cache_salt": request.scope}
        if request.prompt is not None:
            parsed = parse_model_prompt(self._llm.model_config, request.prompt + said)
            (tokens,) = await renderer.render_cmpl_async([parsed], prompt_extras=extras)
            return tokens
        messages = [chat_message(message) for message in request.messages]
        template = {"add_generation_prompt": request.continued is None}
        if request.continued is not None:
            messages.append({"role": "assistant", "content": said})
            template["continue_final_message"] = True
        params = ChatParams(chat_template_kwargs=template)
        _, (tokens,) = await renderer.render_chat_async([messages], params, prompt_extras=extras)
        return tokens


def _beginning(request: ModelRequest) -> tuple[str, str]:
    """What was said, and the blanks at its end that a chat template would trim."""
    said = request.continued or ""
    return (said, "") if request.prompt is not None else split_blanks(said)


def _unusable(model: str, exc: Exception) -> EngineUnavailable:
    """Why it does not open: its weights do not load, or the first token of them fails."""
    if isinstance(exc, EngineError):
        hint = "The weights were loaded, and the first token failed: this hardware may lack what they need."
        return EngineUnavailable(f"vLLM cannot answer with {model}: {exc.message}", hint=hint)
    return EngineUnavailable(f"vLLM cannot load {model}: {exc}", hint="Its log, above, says why.")


def _meaning(exc: Exception, *, begun: bool) -> EngineError:
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(exc, VLLMClientError):
        return engine_error(str(exc), status=400)
    if isinstance(exc, GracefulHTTPError):  # its queue is full
        return engine_error(str(exc), status=429)
    if isinstance(exc, EngineDeadError):
        kind = EngineDied if begun else EngineUnavailable
        return kind("vLLM's engine process has died.", hint="Its log says why. Restart the server to load it again.")
    return engine_error(str(exc) or repr(exc), begun=begun)


def _nothing() -> None:
    pass


def _load(arguments: Mapping[str, Any]) -> Any:
    """Blocks for as long as it takes to load the model."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


def _sampling(request: ModelRequest) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    fields = sampling_fields(request)
    if (shape := fields.pop("structured_outputs", None)) is not None:
        fields["structured_outputs"] = StructuredOutputsParams(**shape)
    return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
