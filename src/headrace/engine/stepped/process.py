"""One life of the model's process, and the requests that it is answering."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec

from headrace.engine.child import ChildProcess
from headrace.engine.port import ModelRequest
from headrace.engine.stepped.answer import Answer
from headrace.engine.stepped.lines import Cancel, Failed, Generate, Look, Ready, Sampling, Seen, said
from headrace.errors import EngineRejected, EngineUnavailable

_logger = logging.getLogger(__name__)


class SteppedProcess:
    """The requests that one process is answering. `library` is what runs in it, by the name that its users know."""

    def __init__(self, child: ChildProcess, *, library: str) -> None:
        self._child = child
        self._library = library
        self._numbers = count(1)
        self._answers: dict[int, Answer] = {}
        self._looks: deque[asyncio.Future[Seen]] = deque()

    async def ready(self, log: Path, *, reads: str) -> None:
        """Wait until the model is loaded. Raises EngineUnavailable, saying why it is not."""
        line = await self._child.line()
        heard = said.decode(line) if line else None
        if not isinstance(heard, Ready):
            reason = heard.reason if isinstance(heard, Failed) else f"its process ended with {await self._child.wait()}"
            hint = f"Its own words are in {log}. {reads}"
            raise EngineUnavailable(f"{self._library} did not start: {reason.rstrip('.')}.", hint=hint)

    async def listen(self) -> None:
        """Hand out what it says, until it ends."""
        while line := await self._child.line():
            match heard := said.decode(line):
                case Seen():
                    self._looked(heard)
                case Failed():
                    _logger.error("%s cannot go on: %s", self._library, heard.reason)
                case Ready():
                    pass
                case _:
                    if (answer := self._answers.get(heard.id)) is not None:
                        answer.hear(heard)

    def end(self) -> None:
        for answer in self._answers.values():
            answer.broke()
        for look in self._looks:
            if not look.done():
                look.set_exception(EngineUnavailable("The engine's process has ended."))

    @contextmanager
    def answering(self, request: ModelRequest, answer: Answer) -> Iterator[None]:
        """Leaving cancels. Raises EngineRejected."""
        number = next(self._numbers)
        self._send(number, request)
        self._answers[number] = answer
        try:
            yield
        finally:
            del self._answers[number]
            if not answer.over:
                self._child.send(Cancel(number))

    async def look(self) -> Seen:
        """Raises EngineUnavailable."""
        look: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._looks.append(look)
        self._child.send(Look())
        return await look

    def _looked(self, seen: Seen) -> None:
        look = self._looks.popleft()
        if not look.done():
            look.set_result(seen)

    def _send(self, number: int, request: ModelRequest) -> None:
        try:
            self._child.send(_order(number, request))
        except (UnicodeEncodeError, TypeError, OverflowError, RecursionError) as exc:
            message = f"The request cannot be written as JSON: {exc}"
            raise EngineRejected(message, hint="Send valid Unicode text and numbers of 64 bits.") from exc


def _order(number: int, request: ModelRequest) -> Generate:
    schema = request.json_schema
    return Generate(
        id=number,
        messages=request.messages,
        prompt=request.prompt,
        continued=request.continued or "",
        max_tokens=request.max_tokens,
        stop=request.stop,
        scope=request.scope,
        sampling=Sampling(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            repetition_penalty=request.repetition_penalty,
            seed=request.seed,
            logit_bias=request.logit_bias,
            grammar=request.grammar,
            regex=request.regex,
            json_schema=None if schema is None else msgspec.json.encode(schema).decode(),
        ),
    )
