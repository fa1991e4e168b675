"""The demo: an agent that answers questions about Headrace from the project's own documents.

    intent ─┐
            ├─► answer
    retrieve┘

A model that cannot call tools but keeps to a grammar, such as the embedded one, answers in the documents' own
sentences (`sentences.py`). Any other engine answers freely, with the passages in front of it and tools to call
(`free.py`). Both are the same workflow up to the answer.
"""

import asyncio
from pathlib import Path
from typing import Literal

from headrace.agent.app import Progress
from headrace.agent.port import RunContext
from headrace.demo import wording
from headrace.demo.free import answer_freely
from headrace.demo.library import Library
from headrace.demo.sentences import SentenceAnswers
from headrace.engine import models
from headrace.engine.port import Engine, ModelRequest
from headrace.errors import ConfigError
from headrace.events import RunFinished

Style = Literal["auto", "sentences", "free"]
_MOST_SLOTS = 16  # that read the prompts' shared beginning at the start; a server with more shares what one has read


class DocsAgent:
    """`style` is how it answers, `auto` to decide by the engine. `retrieval_deadline` is in seconds: later than that
    the model answers from what it knows, and says so."""

    resumable = True
    commits_first = True
    needs_engine = True

    def __init__(
        self,
        name: str = "docs",
        *,
        engine: Engine | None = None,
        style: Style = "auto",
        library: Library | None = None,
        documents: Path | None = None,
        retrieval_deadline: float = 2.0,
    ) -> None:
        self.name = name
        self.description = "Answers questions about Headrace from its documents."
        self.engine = engine
        self.style = style
        self.library = library or Library(documents=documents)
        self.retrieval_deadline = retrieval_deadline

    async def prepare(self, progress: Progress) -> None:
        """Index the documents. Call it once, before the first run.

        Raises:
            ConfigError: the embedder or the documents are not installed.
        """
        await self.library.open(lambda done, total: progress("indexing the documents", done, total))

    async def warm(self, engine: Engine | None) -> None:
        """Let every slot of a small engine read what its prompts share: some 90 tokens, a second on one core, which the
        first people who ask at once would each wait for."""
        engine = self.engine or engine
        if engine is None or not self._keeps_to_sentences(engine):
            return
        known = models.MODELS.get(engine.model)
        for lang, prefix in wording.SHARED_PREFIXES.items():
            if known is not None and lang not in known.languages:
                continue
            async with asyncio.TaskGroup() as group:
                for _ in range(min(engine.capabilities.slots or 1, _MOST_SLOTS)):
                    group.create_task(_read(engine, prefix))

    async def run(self, context: RunContext) -> RunFinished:
        """See `agent.port.AgentPort`."""
        engine = self.engine or context.engine
        if engine is None:
            raise ConfigError(f"The agent {self.name} has no engine.", hint="Pass engine=…, or configure a default.")
        if self._keeps_to_sentences(engine):
            answers = SentenceAnswers(context, engine, self.library, deadline=self.retrieval_deadline)
            return await answers.to_end()
        return await answer_freely(context, engine, self.library, name=self.name, deadline=self.retrieval_deadline)

    def _keeps_to_sentences(self, engine: Engine) -> bool:
        if self.style != "auto":
            return self.style == "sentences"
        can = engine.capabilities
        return can.grammar and can.raw_prompt and not can.tools


async def _read(engine: Engine, prompt: str) -> None:
    async with engine.stream(ModelRequest(prompt=prompt, max_tokens=1, temperature=0.0)) as chunks:
        async for _ in chunks:
            pass
