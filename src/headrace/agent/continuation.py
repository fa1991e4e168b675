"""Whether an answer that was cut goes on from what it has said, and how the rest is asked for. Pure.

Only free text goes on. A server follows a grammar, a schema or a forced call from the answer's first character, and
tells thinking from text by how the answer begins: such an answer is given anew.
"""

from collections.abc import Callable

import msgspec

from headrace.engine.port import Finish, ModelRequest

_FREE_CHOICES = (None, "auto", "none")


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What stands of an answer, in at least so many tokens."""

    text: str
    tokens: int


GoOn = Callable[[ModelRequest, Said], ModelRequest | Finish | None]
"""From the request for a whole answer to what goes on with it: a request for the rest, a Finish when nothing is left to
say, None when the answer must be given anew."""


def go_on(request: ModelRequest, said: Said) -> ModelRequest | Finish | None:
    """Go on with free text."""
    shaped = any(shape is not None for shape in (request.grammar, request.regex, request.json_schema))
    if shaped or request.tool_choice not in _FREE_CHOICES or _may_have_begun(request.stop, said.text):
        return None
    return rest_of(request, said)


def rest_of(request: ModelRequest, said: Said) -> ModelRequest | Finish:
    """The same request for what follows, with what is left of its tokens."""
    left = None if request.max_tokens is None else request.max_tokens - said.tokens
    if left is not None and left < 1:
        return Finish(reason="length")
    return msgspec.structs.replace(request, continued=said.text, max_tokens=left)


def _may_have_begun(stops: tuple[str, ...], text: str) -> bool:
    """Whether the text ends in the beginning of a stop: the server would not see the rest of it as one.

    Servers that hold back what may become a stop never cut an answer there.
    """
    return any(text.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))
