"""A server's refusal as one of our errors: problem+json's stable `code` names the class."""

import msgspec

from headrace.errors import HeadraceError, RequestError


class _Problem(msgspec.Struct, kw_only=True):
    code: str = ""
    detail: str = ""
    title: str = ""
    hint: str | None = None


def _classes(root: type[HeadraceError]) -> dict[str, type[HeadraceError]]:
    """Every error class by its code; a base class keeps its code from its first subclass that shares it."""
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _classes(child)
    return found


def error_for(code: str, message: str, *, hint: str | None = None, status: int = 400) -> HeadraceError:
    """The error of a code. One that we do not know is the caller's below 500 and the server's from there on."""
    known = _classes(HeadraceError)
    fallback = RequestError if status < 500 else HeadraceError
    if code not in known:
        message = f"{message} ({code})" if code else message
    return known.get(code, fallback)(message, hint=hint)


def error_from(status: int, body: bytes) -> HeadraceError:
    """The error of an HTTP answer, also of one that some proxy in between made up."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = _Problem()
    if problem.code:
        message = problem.detail or problem.title
        return error_for(problem.code, message, hint=problem.hint, status=status)
    said = body[:200].decode("utf-8", "replace").strip()
    return error_for("", f"The server answered {status}: {said or 'nothing'}.", status=status)
