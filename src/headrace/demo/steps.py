"""The two steps that every answer begins with, side by side: what is wanted, and what the documents say."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.demo.documents import Passage
from headrace.demo.index import Found, Hit
from headrace.demo.intent import Intent, intent_of
from headrace.demo.library import Library
from headrace.events import SourceCited
from headrace.workflow.run import Body, Workflow


class Steps:
    """A workflow to be finished with an answer. `suffix` keeps the nodes of a second round apart from the first's."""

    def __init__(self, question: str, library: Library, *, deadline: float, suffix: str = "") -> None:
        self.intent = f"intent{suffix}"
        self.retrieve = f"retrieve{suffix}"
        self.answer = f"answer{suffix}"
        self._question = question
        self._library = library
        self.flow = Workflow("docs")
        self.flow.node(name=self.intent)(self._find_intent)
        self.flow.node(name=self.retrieve, deadline=deadline, fallback=None)(self._find_passages)

    def answer_with(self, body: Body) -> Workflow:
        self.flow.node(name=self.answer, needs=(self.intent, self.retrieve))(body)
        return self.flow

    def read(self, inputs: Mapping[str, Any]) -> tuple[Intent, Found | None]:
        """What the answer was given. No Found: the search was late or failed."""
        intent = msgspec.convert(inputs[self.intent], Intent)
        return intent, msgspec.convert(inputs[self.retrieve], Found | None)

    async def _find_intent(self, context: Any, inputs: Mapping[str, Any]) -> Intent:
        return intent_of(self._question)

    async def _find_passages(self, context: Any, inputs: Mapping[str, Any]) -> Found:
        return await self._library.search(self._question)


def citation(hit: Hit) -> SourceCited:
    passage: Passage = hit.passage
    return SourceCited(
        id=passage.id,
        title=" › ".join(filter(None, (passage.title, passage.heading))),
        path=passage.page,
        span=(passage.start, passage.end),
        score=hit.score,
        text=passage.text,
    )
