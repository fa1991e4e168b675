"""Texts of a wanted length that have nothing in common, so that no cache of prefixes, and none of pieces, helps with a
text that is new."""

import random

_COMMON = """
river mill bridge sea stone road tree field house garden window table paper letter morning evening winter summer water
fire wind rain snow light shadow door wall roof street market city village church school king queen soldier doctor
teacher farmer child mother father brother sister friend horse dog bird fish apple bread wine gold silver iron glass
wood song story book picture map ship train wheel hand eye heart voice dream war peace law trade money
"""
_WORDS = _COMMON.split()
_SENTENCE = 14  # words


def about(tokens: int, number: int = 0) -> str:
    """A text of so many tokens or up to a tenth more: as many words, all common ones, which a tokenizer seldom cuts,
    and full stops. Each `number` has a text of its own, drawn anew from its first word on, and always the same."""
    drawn = random.Random(number)
    words = [drawn.choice(_WORDS) for _ in range(tokens)]
    sentences = [" ".join(words[at : at + _SENTENCE]).capitalize() for at in range(0, tokens, _SENTENCE)]
    return ". ".join(sentences) + "."
