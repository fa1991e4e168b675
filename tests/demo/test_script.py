"""What is left of an answer that was cut anywhere: exactly the rests of the answers that begin so."""

import json
import re

import pytest

from headrace.demo.script import Script
from headrace.demo.wording import TIE, exactly, from_memory, from_sentences

ENGLISH = ['A "quoted" path is C:\\new.', "It costs 3 € – or a 👩‍👩‍👧 smile."]
CHINESE = ["锁属于一个进程。", "日志里有每条记录😀。"]
CERTAIN = exactly("Which?", "en", *ENGLISH)
NEAR = from_sentences("Which?", "en", ENGLISH, TIE)
NEAR_CHINESE = from_sentences("哪个？", "zh", CHINESE, TIE)
MEMORY = from_memory("哪个？", "zh")
ANSWERS = [
    (CERTAIN, " ".join(ENGLISH)),
    (NEAR, ENGLISH[0] + "\n"),
    (NEAR, " ".join(ENGLISH) + "\n"),
    (NEAR_CHINESE, CHINESE[0] + "\n"),
    (NEAR_CHINESE, "".join(CHINESE) + "\n"),
    (MEMORY, MEMORY.says + "不知道🙂\n"),
]


def allows(script: Script, text: str) -> bool:
    """Whether the grammar does; a line break that nobody needs any more may be missing."""
    if script.over:
        return text in ("", "\n")
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|\[\^\\n\][+*]|[()?]', script.grammar.removeprefix("root ::= "))
    pattern = "".join(re.escape(json.loads(token)) if token.startswith('"') else token for token in tokens)
    return bool(re.fullmatch(pattern, text) or re.fullmatch(pattern, text.removesuffix("\n")))


@pytest.mark.parametrize(("script", "answer"), ANSWERS)
def test_cut_after_any_character_the_rest_of_the_answer_is_what_is_left(script: Script, answer: str) -> None:
    assert allows(script, answer)
    for cut in range(len(answer.rstrip("\n")) + 1):
        left = script.after(answer[:cut])
        assert left is not None
        assert allows(left, answer[cut:]), answer[:cut]
        for other, another in ANSWERS:
            if other is script:
                goes_on_so = another.startswith(answer[:cut])
                assert not goes_on_so or allows(left, another[cut:])
        assert not allows(left, answer[cut:].rstrip("\n") + "x\n") or script.free


def test_what_has_been_said_to_the_end_is_over_and_asks_for_nothing() -> None:
    whole = CERTAIN.after(" ".join(ENGLISH))
    added = NEAR.after(" ".join(ENGLISH))
    assert whole is not None
    assert added is not None
    assert whole.over
    assert added.over


def test_the_choice_to_add_a_sentence_is_still_there_after_the_first_one() -> None:
    left = NEAR.after(ENGLISH[0])
    assert left is not None
    assert left.grammar == f'root ::= ({json.dumps(" " + ENGLISH[1], ensure_ascii=False)})? "\\n"'
    added = NEAR.after(ENGLISH[0] + " It")
    assert added is not None
    assert added.grammar == f"root ::= {json.dumps(ENGLISH[1][2:], ensure_ascii=False)}"


def test_words_of_its_own_need_at_least_one_until_one_has_been_said() -> None:
    begun, further = MEMORY.after(MEMORY.says), MEMORY.after(MEMORY.says + "不")
    assert begun is not None
    assert further is not None
    assert begun.grammar == r'root ::= [^\n]+ "\n"'
    assert further.grammar == r'root ::= [^\n]* "\n"'


@pytest.mark.parametrize("script", [CERTAIN, NEAR, NEAR_CHINESE, MEMORY])
def test_what_the_script_does_not_say_has_no_rest(script: Script) -> None:
    for said in ("x", script.says[:3] + "x", script.says + "\nx"):
        assert script.after(said) is None
