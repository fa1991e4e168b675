"""What each model server can do, where it is found and how it spells it. Data, from the servers' own documents and
source: a thing is said here only where it changes the answer, and what a server would drop in silence it cannot do.

A server that is not named is recognised by its address or by who owns the models in its list.
"""

from collections.abc import Iterable, Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from headrace.engine.port import PARAMETERS, Capabilities, Parameter, ToolChoice
from headrace.engine.spelling import (
    PLAIN,
    Spelling,
    named,
    response_format,
    strict_tools,
    structured_outputs,
    tools_with_a_choice_always,
    tools_without_a_choice,
    tools_without_names,
    typed_format,
)
from headrace.errors import ConfigError

STANDARD: frozenset[Parameter] = PARAMETERS - {"top_k", "min_p", "repetition_penalty"}
"""What OpenAI's own API knows."""

CHAT = Capabilities(tools=True, sampling=STANDARD, logprobs=True, json_schema=True, thinking=True, embeddings=True)
"""What nearly every compatible server can do."""

CONTINUING = msgspec.structs.replace(CHAT, sampling=PARAMETERS, raw_prompt=True, continuation=True)
"""What most servers of open weights can do: they go on with an answer that was cut. OpenAI's own API cannot."""

_ALL_SHAPES = msgspec.structs.replace(CONTINUING, grammar=True, regex=True)
_NO_SIGNATURE = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """`url` is where the server listens unless it was told otherwise. `url_variable` and `key_variable` are the
    environment's names that its users have set already. `owners` are who owns the models in its list."""

    name: str
    url: str
    capabilities: Capabilities
    spelling: Spelling = PLAIN
    url_variable: str | None = None
    key_variable: str | None = None
    owners: frozenset[str] = frozenset()
    api: Literal["chat completions", "messages"] = "chat completions"

    @property
    def hosted(self) -> bool:
        """Whether it is one service with one address, known by that."""
        return self.url.startswith("https:")


def _choices(*kinds: ToolChoice) -> frozenset[ToolChoice]:
    return frozenset(kinds)


def _parameters(*names: Parameter) -> frozenset[Parameter]:
    return frozenset(names)


OPENAI = Preset(
    name="openai",
    url="https://api.openai.com/v1",
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    # Its reasoning models refuse some of the sampling themselves, and show no thinking in this API.
    capabilities=msgspec.structs.replace(CHAT, thinking=False),
    spelling=Spelling(
        fields={"json_schema": response_format, "max_tokens": named("max_completion_tokens")},
        stops=4,
    ),
    owners=frozenset({"openai", "openai-internal", "system"}),
)

ANTHROPIC = Preset(
    name="anthropic",
    url="https://api.anthropic.com/v1",
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    # Its older models take more, which `claude_models.py` knows.
    capabilities=Capabilities(
        tools=True,
        sampling=_parameters("stop"),
        json_schema=True,
        thinking=True,
    ),
    owners=frozenset({"anthropic"}),
    api="messages",
)

GEMINI = Preset(
    name="gemini",
    url="https://generativelanguage.googleapis.com/v1beta/openai",
    key_variable="GEMINI_API_KEY",
    # Its documents promise no more; what it does not know it refuses.
    capabilities=Capabilities(
        tools=True,
        tool_choice=_choices("auto", "none", "required"),
        json_schema=True,
        thinking=True,
        embeddings=True,
    ),
    # Gemini 3 wants the signature of its thoughts back with each call, or this word where there is none.
    spelling=Spelling(fields={"json_schema": response_format}, call=_NO_SIGNATURE, stops=5),
    owners=frozenset({"google"}),
)

OLLAMA = Preset(
    name="ollama",
    url="http://127.0.0.1:11434/v1",
    # Its compatible endpoint reads no other fields; raw prompts go through the model's template.
    capabilities=Capabilities(
        tools=True,
        tool_choice=_choices("auto", "none"),
        sampling=STANDARD - {"logit_bias"},
        logprobs=True,
        json_schema=True,
        thinking=True,
        embeddings=True,
    ),
    spelling=Spelling(fields={"json_schema": response_format}, tools=tools_without_a_choice),
    owners=frozenset({"library"}),
)

LM_STUDIO = Preset(
    name="lmstudio",
    url="http://127.0.0.1:1234/v1",
    capabilities=Capabilities(
        tools=True,
        tool_choice=_choices("auto", "none", "required"),
        sampling=PARAMETERS - {"min_p"},
        json_schema=True,
        thinking=True,
        embeddings=True,
    ),
    spelling=Spelling(fields={"json_schema": response_format, "repetition_penalty": named("repeat_penalty")}),
    owners=frozenset({"organization_owner"}),
)

LLAMA_SERVER = Preset(
    name="llama-server",
    url="http://127.0.0.1:8080/v1",
    key_variable="LLAMA_API_KEY",
    capabilities=msgspec.structs.replace(CONTINUING, grammar=True),
    spelling=Spelling(
        fields={"json_schema": response_format, "repetition_penalty": named("repeat_penalty")},
        tools=tools_without_names,
        beginning=PLAIN.beginning,
    ),
    owners=frozenset({"llamacpp"}),
)

VLLM = Preset(
    name="vllm",
    url="http://127.0.0.1:8000/v1",
    key_variable="VLLM_API_KEY",
    capabilities=_ALL_SHAPES,
    spelling=Spelling(
        fields={
            "json_schema": response_format,
            "regex": structured_outputs("regex"),
            "grammar": structured_outputs("grammar"),
            "scope": named("cache_salt"),
            "priority": named("priority"),
        },
        tools=strict_tools,
        beginning=PLAIN.beginning,
    ),
    owners=frozenset({"vllm"}),
)

SGLANG = Preset(
    name="sglang",
    url="http://127.0.0.1:30000/v1",
    capabilities=_ALL_SHAPES,
    spelling=Spelling(
        fields={"json_schema": response_format, "grammar": named("ebnf")},
        beginning={"continue_final_message": True},
    ),
    owners=frozenset({"sglang"}),
)

TGI = Preset(
    name="tgi",
    url="http://127.0.0.1:8080/v1",
    # It turns `presence_penalty` into another penalty and reads no `logit_bias`. Its stops may miss what ends inside a
    # token, so they are found here as well.
    capabilities=Capabilities(
        tools=True,
        sampling=_parameters("temperature", "top_p", "frequency_penalty", "seed", "stop"),
        logprobs=True,
        regex=True,
        json_schema=True,
        thinking=True,
    ),
    spelling=Spelling(
        fields={"json_schema": typed_format("json_object", "value"), "regex": typed_format("regex", "value")}
    ),
)

TENSORRT_LLM = Preset(
    name="tensorrt-llm",
    url="http://127.0.0.1:8000/v1",
    capabilities=msgspec.structs.replace(_ALL_SHAPES, continuation=False),
    spelling=Spelling(
        fields={
            "json_schema": response_format,
            "regex": typed_format("regex", "regex"),
            "grammar": typed_format("ebnf", "ebnf"),
        },
        tools=tools_with_a_choice_always,
    ),
    owners=frozenset({"tensorrt_llm"}),
)

TRITON = Preset(
    name="triton",
    url="http://127.0.0.1:9000/v1",
    # `required` takes the first tool whatever the model thinks, and a schema or logprobs depend on its backend.
    capabilities=Capabilities(
        tools=True,
        tool_choice=_choices("auto", "none", "named"),
        sampling=STANDARD - {"logit_bias"},
        raw_prompt=True,
        embeddings=True,
    ),
    owners=frozenset({"Triton Inference Server"}),
)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        OPENAI,
        ANTHROPIC,
        GEMINI,
        OLLAMA,
        LM_STUDIO,
        LLAMA_SERVER,
        VLLM,
        SGLANG,
        TGI,
        TENSORRT_LLM,
        TRITON,
    )
}


def preset(name: str) -> Preset:
    """Raises ConfigError for a name that is none."""
    if name not in PRESETS:
        raise ConfigError(f"{name!r} is no model server that is known here.", hint=f"Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def preset_at(url: str) -> Preset | None:
    """The hosted service at this address."""
    host = urlsplit(url).hostname
    return next((known for known in PRESETS.values() if known.hosted and urlsplit(known.url).hostname == host), None)


def preset_of(owners: Iterable[str]) -> Preset | None:
    """The server whose models these people own. None for a mixture, or strangers."""
    names = frozenset(owners)
    return next((known for known in PRESETS.values() if names and names <= known.owners and not known.hosted), None)
