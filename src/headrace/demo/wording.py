"""What the small model reads and what it may write. Pure.

A small model invents when it may write freely. So its grammar holds nothing but sentences of the documents. Which one
comes first is decided by the ranking: left to choose among four, the default model was right about some 60 % of the
questions, and the ranking about 90 %. The model decides whether the runner-up is said too, and it does that well.

Where there is something to decide, the prompt begins with examples that never change, so an engine with a prefix cache
reads them once. Where there is nothing, it is the question alone, and the first token waits for some twenty tokens.
"""

from collections.abc import Sequence

from headrace.demo.documents import Lang
from headrace.demo.grade import NOT_IN_DOCUMENTS
from headrace.demo.script import Script

TIE = 0.005
"""A runner-up this near is as likely to be the answer: both are said."""

NEAR = 0.02
"""A runner-up this near may be worth saying: the model decides."""


SHARED_PREFIXES: dict[Lang, str] = {
    "en": """\
Passage: Books may be kept for three weeks. Late books cost ten cents.
Question: How long can I keep a book?
Answer: Books may be kept for three weeks.

Passage: Dogs ride for free. Tickets cost two euros.
Question: May my dog come, and what is a ticket?
Answer: Dogs ride for free. Tickets cost two euros.

""",
    "zh": """\
资料：书可以借三个星期。逾期的书每天收费一角。
问题：书可以借多久？
回答：书可以借三个星期。

资料：狗可以免费乘车，但要系上牵引绳。车票由司机出售，两元一张。
问题：可以带狗上车吗？车票多少钱？
回答：狗可以免费乘车，但要系上牵引绳。车票由司机出售，两元一张。

""",
}
"""What every prompt with something to decide begins with."""

_LABELS: dict[Lang, tuple[str, str, str]] = {
    "en": ("Passage: ", "Question: ", "Answer:"),
    "zh": ("资料：", "问题：", "回答："),
}
_GREETING: dict[Lang, str] = {
    "en": "Hello! Ask me anything about Headrace.",
    "zh": "你好！请问我关于 Headrace 的问题。",
}
_FROM_MEMORY: dict[Lang, str] = {
    "en": "The documents could not be searched in time, so this is only what the model knows:",
    "zh": "没能及时检索文档，以下只是模型自己的知识：",
}


def from_sentences(question: str, lang: Lang, sentences: Sequence[str], margin: float) -> Script:
    """An answer of the best sentence, and of the second if it is near. `margin` is how far the second is behind."""
    first, *others = sentences[:2]
    if not others or margin >= NEAR:
        return exactly(question, lang, first)
    second = others[0]
    if margin < TIE:
        return exactly(question, lang, first, second)
    passage = _gap(lang).join((first, second))
    prompt = f"{SHARED_PREFIXES[lang]}{_LABELS[lang][0]}{passage}\n{_asked(question, lang)}"
    return Script(prompt=prompt, says=first, may_add=_gap(lang) + second, certain=(first,), possible=(second,))


def exactly(question: str, lang: Lang, *sentences: str) -> Script:
    """An answer that is certain."""
    return Script(prompt=_asked(question, lang), says=_gap(lang).join(sentences), certain=tuple(sentences))


def refusal(question: str, lang: Lang) -> Script:
    return exactly(question, lang, NOT_IN_DOCUMENTS[lang])


def greeting(question: str, lang: Lang) -> Script:
    return exactly(question, lang, _GREETING[lang])


def from_memory(question: str, lang: Lang) -> Script:
    """A free answer that begins by saying that it is one."""
    return Script(prompt=SHARED_PREFIXES[lang] + _asked(question, lang), says=_FROM_MEMORY[lang], free="some")


def clock_sentence(lang: Lang, time: str, weekday: str, zone: str) -> str:
    """`time` is ISO 8601 with seconds."""
    date, _, rest = time.partition("T")
    if lang == "zh":
        return f"{zone} 现在是 {date} {rest[:5]}。"
    return f"It is {rest[:5]} on {weekday}, {date}, in the time zone {zone}."


def calculator_sentence(expression: str, value: object) -> str:
    return f"{expression} = {value}"


def _asked(question: str, lang: Lang) -> str:
    _, asked, answer = _LABELS[lang]
    return f"{asked}{_one_line(question)}\n{answer}"


def _one_line(text: str, longest: int = 500) -> str:
    return " ".join(text.split())[:longest]


def _gap(lang: Lang) -> str:
    return " " if lang == "en" else ""
