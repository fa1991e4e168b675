"""What the small model may say: nothing but the documents' sentences."""

import msgspec

from headrace.demo.wording import NEAR, TIE, exactly, from_memory, from_sentences

SENTENCES = ['The "first" one.', "The second one.", "The third one."]


def test_a_best_sentence_far_ahead_is_the_whole_answer() -> None:
    script = from_sentences("Which?", "en", SENTENCES, NEAR)
    assert script.certain == (SENTENCES[0],)
    assert script.possible == ()
    assert script.grammar == 'root ::= "The \\"first\\" one."'


def test_a_runner_up_that_is_near_is_the_model_s_to_decide_with_both_in_front_of_it() -> None:
    script = from_sentences("Which?", "en", SENTENCES, TIE)
    assert (script.certain, script.possible) == ((SENTENCES[0],), (SENTENCES[1],))
    assert script.grammar.endswith('(" The second one.")? "\\n"')
    assert "\n".join(["Passage: " + " ".join(SENTENCES[:2]), "Question: Which?", "Answer:"]) in script.prompt


def test_of_two_that_are_tied_both_are_said() -> None:
    script = from_sentences("Which?", "en", SENTENCES, 0.0)
    assert script.certain == tuple(SENTENCES[:2])
    assert SENTENCES[1] in script.grammar


def test_a_certain_answer_is_asked_for_with_the_question_alone() -> None:
    assert exactly("Which\n one?", "en", "That.").prompt == "Question: Which one?\nAnswer:"


def test_prompts_with_a_decision_share_their_beginning() -> None:
    one, two = (from_sentences(q, "en", SENTENCES, TIE).prompt for q in ("Which?", "Who?"))
    examples = one.partition('Passage: The "first"')[0]
    assert len(examples) > 200
    assert two.startswith(examples)


def test_chinese_sentences_follow_each_other_without_a_space() -> None:
    script = from_sentences("哪个？", "zh", ["第一。", "第二。"], 0.0)
    assert msgspec.json.decode(script.grammar.removeprefix("root ::= ")) == "第一。第二。"
    assert script.prompt == "问题：哪个？\n回答："


def test_an_answer_from_memory_begins_by_saying_so() -> None:
    grammar = from_memory("Which?", "en").grammar
    assert grammar.startswith('root ::= "The documents could not be searched in time')
