"""What the embedded engine can do, by its model and its settings."""

from headrace.engine.gguf import Header
from headrace.engine.llamacpp.embeddings import longest_text
from headrace.engine.llamacpp.settings import LlamaCppSettings
from headrace.engine.port import PARAMETERS, Capabilities


def of_a_generator(settings: LlamaCppSettings, *, tools: bool) -> Capabilities:
    """`context_tokens` is what was asked for. llama.cpp rounds up to a multiple of 256, but nobody may count on it."""
    return Capabilities(
        tools=tools,
        sampling=PARAMETERS,
        logprobs=True,
        grammar=True,
        json_schema=True,
        thinking=True,
        raw_prompt=True,
        continuation=True,
        embeddings=settings.embeddings,
        context_tokens=settings.context,
        slots=settings.slots,
    )


def of_an_encoder(header: Header, settings: LlamaCppSettings) -> Capabilities:
    """It embeds, and refuses every request to generate."""
    longest = longest_text(header, settings.context)
    return Capabilities(sampling=frozenset(), embeddings=True, context_tokens=longest, slots=1)
