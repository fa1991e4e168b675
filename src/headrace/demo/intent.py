"""What a question wants: arithmetic, the time, a greeting, or the documents. Pure, by rules that are sure or silent.

A small model chooses its tools right half of the time; these rules let a question through to the documents unless the
whole of it is arithmetic, a question for the time, or a greeting.
"""

import functools
import re
from typing import Literal
from zoneinfo import available_timezones

import msgspec

from headrace.errors import InvalidArguments
from headrace.tools.builtin import calculate

Kind = Literal["documents", "calculator", "clock", "greeting"]


_LONGEST = 120
"""Characters: a longer question is none of these, and patterns stay cheap."""


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`expression` is for the calculator, `zone` (IANA) for the clock."""

    kind: Kind
    expression: str = ""
    zone: str = "UTC"


def intent_of(question: str) -> Intent:
    text = question.strip()
    if len(text) > _LONGEST:
        return Intent(kind="documents")
    if expression := _expression(text):
        return Intent(kind="calculator", expression=expression)
    if _CLOCK.fullmatch(text):
        return Intent(kind="clock", zone=_zone(text))
    if _GREETING.fullmatch(text):
        return Intent(kind="greeting")
    return Intent(kind="documents")


_ASKING = re.compile(
    r"^(please\s+|can you\s+|could you\s+)*(what\s+is|what's|whats|how\s+much\s+is|calculate|compute|evaluate|solve"
    r"|work\s+out|请?计算(一下)?|请问|算一下|算算)\s*:?\s*|\s*(=\s*)?(等于多少|是多少|等于几|=)?\s*[?？.。!]*$",
    re.IGNORECASE,
)
_WORDS: tuple[tuple[str, str], ...] = (
    (r"\b(multiplied by|times)\b|[x×乘](?=\s*[\d(])", "*"),
    (r"\b(divided by|over)\b|÷|除以", "/"),
    (r"\bplus\b|加", "+"),
    (r"\bminus\b|减", "-"),
    (r"\bto the power of\b", "**"),
    (r"\bsquared\b", "**2"),
    (r"\bcubed\b", "**3"),
    (r"\b(the )?square root of (\d+(?:\.\d+)?)", r"sqrt(\2)"),
    (r"(\d+(?:\.\d+)?)\s*(?:%|percent) of\b", r"\1/100*"),
    (r"(?<=\d),(?=\d{3}\b)", ""),
)
_ARITHMETIC = re.compile(
    r"(?=.*\d)(?=.*([-+*/%^]|sqrt|log|sin|cos|tan))[\d\s.+*/()%^,\-]*((sqrt|log|sin|cos|tan|pi|e)[\d\s.+*/()%^,\-]*)*"
)
_DATE = re.compile(r"\d+[-/.]\d+[-/.]\d+")


def _expression(text: str) -> str:
    """The arithmetic that the question consists of, or nothing."""
    rest = _ASKING.sub("", text).strip()
    for words, symbol in _WORDS:
        rest = re.sub(words, symbol, rest, flags=re.IGNORECASE)
    if not _ARITHMETIC.fullmatch(rest) or _DATE.fullmatch(rest):
        return ""
    try:
        calculate(rest)
    except InvalidArguments as exc:
        return rest if "zero" in exc.message else ""
    return rest


_CLOCK = re.compile(
    r"(hi|hello|hey|please|excuse me)?[,\s]*("
    r"(what('?s| is)|tell me|do you know|can you tell me|show me)\s+(what\s+)?(the\s+)?(current\s+|local\s+)?"
    r"(time|date|day|weekday|time and date|date and time)(\s+is)?(\s+it)?(\s+(right\s+)?now|\s+today)?"
    r"(\s+(is it|in)\s+.{2,30})?"
    r"|what\s+(time|date|day|weekday|day of the week|year)\s+(is\s+it|is\s+today|do\s+we\s+have)"
    r"(\s+(right\s+)?now|\s+today)?(\s+in\s+.{2,30})?"
    r"|(current\s+)?(time|date)(\s+in\s+.{2,30}|\s+now|\s+please)?"
    r"|(请问|现在|今天|.{0,6}现在|.{0,6}今天|[，,\s])*(几点(了|钟)*|什么时间|什么时候了|几号|几月几号|星期几|礼拜几|日期|时间)(是什么|是多少|了)?"
    r")\s*[?？.!。]*",
    re.IGNORECASE,
)
_GREETING = re.compile(
    r"(hi|hello|hey|good (morning|afternoon|evening)|thanks?|thank you( very much)?|bye|goodbye|你好|您好|谢谢|再见)"
    r"(\s+(there|all|everybody))?\s*[!.,?。！~]*",
    re.IGNORECASE,
)
_PLACES_ZH = {"北京": "Asia/Shanghai", "上海": "Asia/Shanghai", "东京": "Asia/Tokyo", "纽约": "America/New_York"}
_PLACES_ZH |= {"伦敦": "Europe/London", "巴黎": "Europe/Paris", "柏林": "Europe/Berlin", "香港": "Asia/Hong_Kong"}


def _zone(text: str) -> str:
    """The time zone of a place that is named, else UTC."""
    for place, zone in _PLACES_ZH.items():
        if place in text:
            return zone
    named = re.search(r"\bin\s+([a-z_/ ]+)", text, re.IGNORECASE)
    return _zones().get(named.group(1).strip().lower().replace(" ", "_"), "UTC") if named else "UTC"


@functools.cache
def _zones() -> dict[str, str]:
    """By the name itself and by its last part, in lower case: `europe/berlin`, `berlin`."""
    known = sorted(available_timezones())
    return {zone.lower().rpartition("/")[2]: zone for zone in known} | {zone.lower(): zone for zone in known}
