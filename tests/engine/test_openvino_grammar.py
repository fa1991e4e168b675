"""GBNF for a library that misreads an escape with a digit behind it: none is left, and nothing else is changed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.openvino_grammar import readable


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('root ::= "ñandú"', 'root ::= ("ñ" "andú")'),
        ('root ::= "día"*', 'root ::= ("dí" "a")*'),
        ('root ::= "dos niños"', 'root ::= "dos niños"'),
        (r'root ::= "\x41b" "\u00f1a" "\U000000e9\n"', 'root ::= "Ab" ("ñ" "a") "é\\n"'),
        (r'root ::= "a\"b\\n\t"', r'root ::= "a\"b\\n\t"'),
        ("root ::= [ña]", "root ::= [añ]"),
        ("root ::= [^ñà-ÿa-f]+", "root ::= [^a-fñà-ÿ]+"),
        (r"root ::= [\x00-\x1f\]\-a-z]", r"root ::= [\]\-a-z\x00-\x1f]"),
        ('root ::= "a" # "ñandú" [\nb ::= "ñb"', 'root ::= "a" \nb ::= ("ñ" "b")'),
        ('root ::= "#" [#"] "ña"', 'root ::= "#" [#"] ("ñ" "a")'),
        ('root ::= "你好a😀1"', 'root ::= "你好a😀1"'),
        ('root ::= ""', 'root ::= ""'),
    ],
)
def test_what_would_be_misread_is_written_apart(written: str, read: str) -> None:
    assert readable(written) == read


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@given(st.text(alphabet=st.sampled_from('ñÿ\x01aF0gz"\\\n 你😀#[]()'), max_size=12))
def test_a_literal_keeps_its_text_and_holds_nothing_misread(text: str) -> None:
    grammar = readable(f"root ::= {quoted(text)}")
    parts = re.findall(r'"((?:\\.|[^"\\])*)"', grammar)
    unescaped = [re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), part) for part in parts]
    assert "".join(unescaped) == text
    assert not any(re.search("[\x01\x7f-\xff][0-9a-fA-F]", part) for part in unescaped)


@given(st.text(alphabet='ñabc"\\[]#() ^-x1\n', max_size=30))
def test_what_is_no_grammar_is_handed_on_for_the_library_to_refuse(text: str) -> None:
    assert isinstance(readable(text), str)
