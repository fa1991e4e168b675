"""The grammar that an answer is held to, whichever way its shape was asked for, as XGrammar reads it."""

import msgspec

from headrace.engine.grammars.json_schema import compact_grammar
from headrace.engine.grammars.regex import regex_grammar
from headrace.engine.grammars.xgrammar import readable
from headrace.engine.stepped.lines import Sampling


def grammar_of(sampling: Sampling) -> str | None:
    """What shapes the answer. Schemas become grammars here: the library's own JSON has room for blanks everywhere, and
    small models fill it. Raises ValueError for what the library could not compile."""
    grammar = sampling.grammar
    if sampling.regex is not None:
        grammar = regex_grammar(sampling.regex)
    if sampling.json_schema is not None:
        grammar = compact_grammar(msgspec.json.decode(sampling.json_schema))
        if grammar is None:
            raise ValueError("The schema asks for more than can be made a grammar, such as a pattern or a bound.")
    return None if grammar is None else readable(grammar)
