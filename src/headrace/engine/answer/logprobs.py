"""The log probabilities of tokens, in the two forms that OpenAI-compatible servers send. Pure, and forgiving: what is
no number is left out, because nobody's answer should fail for it."""

from typing import Any

from headrace.engine.port import TokenLogprob


def read_logprobs(sent: object) -> list[TokenLogprob]:
    """Those of one chunk: chat sends a list of `content`, raw completions send parallel lists."""
    if not isinstance(sent, dict):
        return []
    if isinstance(sent.get("content"), list):
        return [token for entry in sent["content"] if (token := _token(entry)) is not None]
    tokens, values, tops = (sent.get(name) or [] for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(tokens, list) or not isinstance(values, list):
        return []
    tops = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    return [
        TokenLogprob(token=str(token), logprob=float(value), top=_alternatives(top))
        for token, value, top in zip(tokens, values, tops, strict=False)
        if _is_number(value)
    ]


def _token(entry: object) -> TokenLogprob | None:
    if not isinstance(entry, dict) or not _is_number(entry.get("logprob")):
        return None
    top = entry.get("top_logprobs")
    others = [_token(other) for other in top] if isinstance(top, list) else []
    return TokenLogprob(
        token=str(entry.get("token", "")),
        logprob=float(entry["logprob"]),
        data=_data(entry.get("bytes")),
        top=tuple(other for other in others if other is not None),
    )


def _alternatives(top: object) -> tuple[TokenLogprob, ...]:
    if not isinstance(top, dict):
        return ()
    likely = sorted(((float(value), str(token)) for token, value in top.items() if _is_number(value)), reverse=True)
    return tuple(TokenLogprob(token=token, logprob=value) for value, token in likely)


def _data(sent: Any) -> bytes | None:
    try:
        return bytes(sent) if isinstance(sent, list) else None
    except (TypeError, ValueError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
