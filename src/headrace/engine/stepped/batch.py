"""Many answers from one model, a step at a time: who is being answered, what came of each step. Who waits does so in
the server (`engine/line/`); here only until the step is over that is being computed.

The library batches by itself whatever it is given. What is added here: no more answers at once than there is memory
for, so that it never has to throw away what it has read; text instead of token ids; stop strings. Knows neither the
library nor the pipe: `Model` is the seam.
"""

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from headrace.engine.answer.detokenise import Detokeniser
from headrace.engine.answer.stops import StopMatcher
from headrace.engine.stepped.lines import Cancel, Ended, Generate, Look, Order, Piece, Refused, Said, Seen

_LONGEST_REASON = 500


class Generation(Protocol):
    """One answer in the library."""

    @property
    def cached_tokens(self) -> int:
        """How many of its prompt needed not be read, as far as that is known."""
        ...

    def read(self) -> tuple[list[int], str | None]:
        """The tokens since the last time, and `stop` or `length` once there are no more."""
        ...

    def cancel(self) -> None:
        """Its place is free after the next step."""
        ...


class Model(Protocol):
    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token id."""
        ...

    def tokens(self, request: Generate) -> list[int]:
        """The prompt, and what has been said. Raises ValueError for what the model cannot read."""
        ...

    def add(self, tokens: list[int], request: Generate, *, max_tokens: int) -> Generation:
        """Raises ValueError for what it refuses at once."""
        ...

    def step(self) -> None:
        """Compute. Once it has raised, it is useless."""
        ...


class _Asked:
    """A request whose prompt fits."""

    def __init__(self, request: Generate, prompt: list[int], max_tokens: int) -> None:
        self.request = request
        self.prompt = prompt
        self.max_tokens = max_tokens


class _Answer:
    def __init__(self, asked: _Asked, generation: Generation, pieces: Sequence[bytes]) -> None:
        stop = asked.request.stop
        self.asked = asked
        self.generation = generation
        self.tokens = 0
        self.begun = monotonic()
        self.first: float | None = None
        self._text = Detokeniser(pieces)
        self._stops = StopMatcher(stop) if stop else None

    @property
    def stopped(self) -> bool:
        return self._stops is not None and self._stops.hit

    def take(self, ids: list[int], *, last: bool) -> str:
        """The text to show for these tokens."""
        if ids and self.first is None:
            self.first = monotonic()
        self.tokens += len(ids)
        text = self._text.feed(ids)
        if last:
            text += self._text.end()
        if self._stops is not None:
            text = self._stops.feed(text)
            if last and not self._stops.hit:
                text += self._stops.end()
        return text

    def ended(self, reason: str) -> Ended:
        now = monotonic()
        first = now if self.first is None else self.first
        return Ended(
            id=self.asked.request.id,
            reason="length" if reason == "length" else "stop",
            input_tokens=len(self.asked.prompt),
            output_tokens=self.tokens,
            cached_tokens=self.generation.cached_tokens,
            prefill_ms=(first - self.begun) * 1000,
            decode_ms=(now - first) * 1000,
        )


class Batch:
    """`slots` answers at once, each with `context` tokens, prompt and answer together."""

    def __init__(self, model: Model, *, slots: int, context: int) -> None:
        self._model = model
        self._slots = slots
        self._context = context
        self._line: deque[_Asked] = deque()
        self._answers: dict[int, _Answer] = {}
        self._to_be_freed = False

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._line or self._answers or self._to_be_freed)

    def obey(self, order: Order) -> list[Said]:
        match order:
            case Generate():
                return self._ask(order)
            case Cancel():
                self._cancel(order.id)
                return []
            case Look():
                # A cancelled answer is computed until the step that frees it.
                return [Seen(len(self._answers) + self._to_be_freed, len(self._line))]

    def admit(self) -> list[Said]:
        """Give the free places to those who wait. Who is refused hears it now, and not only when a step is over."""
        said: list[Said] = []
        while self._line and len(self._answers) < self._slots:
            asked = self._line.popleft()
            try:
                self._begin(asked)
            except ValueError as exc:
                said.append(_rejected(asked.request.id, exc))
        return said

    def step(self) -> list[Said]:
        """Compute. What the library raises is the end: no step after it can be trusted."""
        self._to_be_freed = False
        self._model.step()
        said: list[Said] = []
        for answer in tuple(self._answers.values()):
            said += self._read(answer)
        return said

    def _ask(self, request: Generate) -> list[Said]:
        try:
            prompt = self._model.tokens(request)
        except ValueError as exc:
            return [_rejected(request.id, exc)]
        room = self._context - len(prompt)
        if room < 1:
            reason = (
                f"The prompt has {len(prompt)} tokens, and {self._context} are the most that prompt and answer have."
            )
            return [Refused(id=request.id, why="overflow", reason=reason)]
        self._line.append(_Asked(request, prompt, min(request.max_tokens or room, room)))
        return []

    def _cancel(self, number: int) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None:
            self._free(answer)
        self._line = deque(asked for asked in self._line if asked.request.id != number)

    def _begin(self, asked: _Asked) -> None:
        generation = self._model.add(asked.prompt, asked.request, max_tokens=asked.max_tokens)
        self._answers[asked.request.id] = _Answer(asked, generation, self._model.pieces)

    def _read(self, answer: _Answer) -> list[Said]:
        number = answer.asked.request.id
        ids, reason = answer.generation.read()
        if not ids and reason is None:
            return []
        text = answer.take(ids, last=reason is not None)
        said: list[Said] = [Piece(number, text)] if text else []
        if answer.stopped and reason is None:
            self._free(answer)
        if answer.stopped or reason is not None:
            del self._answers[number]
            said.append(answer.ended("stop" if answer.stopped else reason or "stop"))
        return said

    def _free(self, answer: _Answer) -> None:
        answer.generation.cancel()
        self._to_be_freed = True


def _rejected(number: int, exc: Exception) -> Refused:
    *_, last = str(exc).strip().splitlines() or [type(exc).__name__]
    return Refused(id=number, why="rejected", reason=last.strip()[-_LONGEST_REASON:])
