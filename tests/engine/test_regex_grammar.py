"""Regular expressions as grammars: they let through what Python's own would."""

import re

import pytest

from grammar_regex import regex
from headrace.engine.grammars.regex import regex_grammar
from headrace.engine.grammars.xgrammar import readable

TEXTS = [
    *(
        "",
        "a",
        "b",
        "ab",
        "aab",
        "abab",
        "abc",
        "cab",
        "A",
        "_",
        "7",
        "42",
        "007",
        "3.14",
        "x-1",
        "-",
        "]",
        "^",
        "$",
        "{",
    ),
    *(
        "a{2}",
        "{}",
        "a\nb",
        "\n",
        "\t",
        " ",
        "ñ",
        "ñandú",
        "día",
        "帮你",
        "😀",
        '"',
        "\\",
        "a.b",
        "2026-11-29",
        "foo@bar.org",
    ),
    *("true", "false", "yes|no", "(a)", "[a]", "a+", "a*b"),
]


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a",
            "ab*",
            "a+b?",
            "(a|b)*",
            "(?:ab)+",
            "(?P<name>a)b",
            "a|ab|",
            "^a$",
            "a{2}b",
            "a{1,2}b",
            "a{,2}b",
            "a{2,}",
        ),
        *(
            "a*?b",
            "a+?",
            "(ab){1,2}?",
            ".",
            "..",
            ".*",
            "a.b",
            r"a\.b",
            r"\d+",
            r"\d{4}-\d{2}-\d{2}",
            r"\w+",
            r"\s",
            r"\S+",
        ),
        *(
            r"\D",
            r"\W",
            "[a-c]+",
            "[^a]",
            "[]]",
            "[^]a]",
            r"[\]^-]",
            r"[-a]",
            r"[\w.-]+@[\w-]+\.[a-z]+",
            r"[\d.]+",
            r"\$",
        ),
        *(
            "ñandú",
            "[ña]+dú",
            "día",
            "[帮你]+",
            "(true|false)",
            r"\(a\)",
            r"\[a\]",
            r"a\{2\}",
            "{",
            "{}",
            "a{}",
            r"\x41",
            r"\u0061",
        ),
        *(
            "\n",
            r"\n",
            r"a\nb",
            "[\n]",
            r"[\n\t]",
            '"',
            r"\\",
            r"[\\]",
            r"a\+",
            r"yes\|no",
            "[.$*+?{}()|]",
            r"\d+(\.\d+)?",
        ),
    ],
)
def test_the_same_texts_match(pattern: str) -> None:
    ours = re.compile(regex(readable(regex_grammar(pattern))))
    for text in TEXTS:
        assert bool(ours.fullmatch(text)) == bool(re.fullmatch(pattern, text, re.ASCII)), text


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?=a)b",
        r"(?!a)b",
        r"(?i)a",
        r"\bword",
        r"(a)\1",
        r"\p{L}",
        r"a\Z",
        r"[\D]",
        r"[\q]",
        "a^b",
        "a$b",
        "*",
        "a**",
        "a+*",
    ],
)
def test_what_a_grammar_cannot_say_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="cannot be made a grammar"):
        regex_grammar(pattern)


@pytest.mark.parametrize("pattern", ["(", "a)", "[b-a]", "a{3,2}", "(|"])
def test_a_mistake_does_not_reach_the_library(pattern: str) -> None:
    with pytest.raises(ValueError, match="grammar"):
        readable(regex_grammar(pattern))
