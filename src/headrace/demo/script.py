"""What the small model is asked and may answer, and what is left of that when a part has been said. Pure."""

import json
from typing import Literal

import msgspec

Free = Literal["", "some", "any"]
_FREE = {"some": r"[^\n]+", "any": r"[^\n]*"}


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is `says`, then `may_add` if the model wants to, or `free` words of its own to the end of the line.
    Where it has a choice, the model says by a line break that it has done.

    `certain` are the sentences that any answer holds, `possible` those it may hold.
    """

    prompt: str
    says: str
    may_add: str = ""
    free: Free = ""
    certain: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()

    @property
    def grammar(self) -> str:
        """GBNF, for a script that is not over."""
        parts = [_literal(self.says)] if self.says else []
        if self.free:
            parts.append(_FREE[self.free])
        if self.may_add:
            parts.append(f"({_literal(self.may_add)})?")
        if self.free or self.may_add:
            parts.append(_literal("\n"))
        return f"root ::= {' '.join(parts)}"

    @property
    def over(self) -> bool:
        return not (self.says or self.may_add or self.free)

    def after(self, said: str) -> "Script | None":
        """What is left once `said` has been; None if no answer begins like that."""
        if self.says.startswith(said):
            return msgspec.structs.replace(self, says=self.says[len(said) :])
        if not said.startswith(self.says):
            return None
        added = said[len(self.says) :]
        if self.free and "\n" not in added:
            return msgspec.structs.replace(self, says="", free="any")
        if self.may_add.startswith(added):
            return msgspec.structs.replace(self, says=self.may_add[len(added) :], may_add="")
        return None


def _literal(text: str) -> str:
    """JSON's escapes are all among GBNF's."""
    return json.dumps(text, ensure_ascii=False)
