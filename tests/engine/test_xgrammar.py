"""GBNF for a library that misreads some of it, and that a grammar with a mistake brings down."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.grammars.json_schema import compact_grammar
from headrace.engine.grammars.xgrammar import readable


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"ñandú"', '("ñ" "andú")'),
        ('"día"*', '(("dí" "a")){0,}'),
        ('"dos niños"', '"dos niños"'),
        (r'"\x41b" "\u00f1a" "\U000000e9\n"', '("Ab" ("ñ" "a") "é\\n")'),
        (r'"a\"b\\n\t"', r'"a\"b\\n\t"'),
        (r'"\x01a"', r'("\x01" "a")'),
        ('"你好a😀1"', '"你好a😀1"'),
        ("[ña]", "[añ]"),
        ("[^ñà-ÿa-f]+", "([^a-fñà-ÿ]){1,}"),
        (r"[\x00-\x1f\]\-a-z^]", r"[\]\-a-z\^\x00-\x1f]"),
        ('"a" | "b" "c"', '("a" | ("b" "c"))'),
        ('"a"? ("b" | ){2} "c"{1,3} "d"{4,}', '(("a"){0,1} (("b" | "")){2,2} ("c"){1,3} ("d"){4,})'),
        ('"a" # "ñandú" [', '"a"'),
        ('"#" [#"] # end', '("#" [#"])'),
        ('(\n "a"\n | "b"\n)', '("a" | "b")'),
        ("", '""'),
    ],
)
def test_a_grammar_is_written_so_that_nothing_is_misread(written: str, read: str) -> None:
    assert readable(f"root ::= {written}") == f"root ::= {read}"


def test_rules_may_use_each_other_and_themselves_and_go_on_over_lines() -> None:
    grammar = 'root ::= item\n  | "(" root ")" rest-of_it\nitem ::= [0-9]\n\nrest-of_it ::= "" | "," root'
    assert readable(grammar).splitlines() == [
        'root ::= (item | ("(" root ")" rest-of_it))',
        "item ::= [0-9]",
        'rest-of_it ::= ("" | ("," root))',
    ]


@pytest.mark.parametrize(
    ("grammar", "wrong"),
    [
        ("", "no rule `root`"),
        ('start ::= "a"', "no rule `root`"),
        ("root ::= nowhere", "`nowhere`, which is not defined"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= root "a"', "`root` begins with itself"),
        ('root ::= "x"? a\na ::= b\nb ::= ("" root) | "c"', "begins with itself"),
        ('root ::= a* "x"\na ::= root', "begins with itself"),
        ("root ::= (", "expected"),
        ('root ::= "a")', "expected"),
        ('root = "a"', "cannot be read"),
        ('root ::= "a', "cannot be read"),
        ("root ::= .", "cannot be read"),
        ('root ::= "\\q"', "no character"),
        ('root ::= "\\ud800"', "no character"),
        ('root ::= "\\U00110000"', "no character"),
        ("root ::= [z-a]", "backwards"),
        ("root ::= []", "holds nothing"),
        ('root ::= "a"{3,2}', "repeats"),
        ('root ::= "a"{99999}', "repeats"),
        ("root ::= * ", "expected"),
    ],
)
def test_a_mistake_is_named(grammar: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        readable(grammar)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@given(st.text(alphabet=st.sampled_from('ñÿ\x01aF0gz"\\\n 你😀#[]()'), max_size=12))
def test_a_literal_keeps_its_text_and_holds_nothing_misread(text: str) -> None:
    grammar = readable(f"root ::= {quoted(text)}")
    parts = re.findall(r'"((?:\\x..|\\.|[^"\\])*)"', grammar)
    unescaped = [
        re.sub(r"\\(x01|.)", lambda found: {"n": "\n", "x01": "\x01"}.get(found[1], found[1]), part) for part in parts
    ]
    assert "".join(unescaped) == text
    assert not any(re.search("[\x01\x7f-\xff][0-9a-fA-F]", part) for part in unescaped)


@given(st.text(alphabet='rot:=ña"\\[]#() ^-x1|*{},\n', max_size=30))
def test_whatever_is_given_is_read_or_refused(text: str) -> None:
    try:
        once = readable(f"root ::= {text}")
    except ValueError:
        return
    assert readable(once).count("::=") == once.count("::=")


def test_what_is_made_of_a_schema_is_a_grammar_without_mistakes() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    for schema in (
        {"$ref": "#/$defs/node", "$defs": {"node": node}},
        {"type": "object", "properties": {"ñandú": {"enum": ["ÿ9", 1, None]}, "b": {"type": "array", "maxItems": 3}}},
        {},
    ):
        grammar = compact_grammar(schema)
        assert grammar is not None
        assert readable(grammar).startswith("root ::= ")
