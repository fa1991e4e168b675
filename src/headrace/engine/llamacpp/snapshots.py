"""Long answers are generated in segments, and between two of them the state of their slot is saved; so it is where an
answer is left because another server takes over.

When the process dies, the next one reads the state instead of the prompt and all that was said. It is a cache and
nothing else: the run's log is the truth, a file belongs to one machine, one build and one model, and what it does not
hold is computed anew, also where a file is damaged (`snapshot_files.py`).

A segment begins as a new request, with its grammar, stops, seed and calls from their beginning. So only free text is
cut into segments.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.engine.llamacpp.server import LlamaCppServer
from headrace.engine.llamacpp.snapshot_files import is_whole, make_room, new_part, seal
from headrace.engine.port import Chunk, Finish, ModelRequest, Text
from headrace.errors import EngineError

_log = logging.getLogger(__name__)
_SAVED_WITHIN = 2.0  # seconds; it is some MB, and the slot is free within a step of the model
_BORDER = 4  # tokens: where the text that was said ends, it may be cut into others than it was said in
_IN_VAIN = 2  # times in a row; once may be another server's, which had the slot in between

_SHAPING = frozenset({"grammar", "json_schema", "response_format", "stop", "seed", "logprobs", "n_probs"})
"""What a request may have among its extras that does not survive a cut."""

T = TypeVar("T")
Ask = Callable[[ModelRequest], AbstractAsyncContextManager[AsyncIterator[Chunk]]]


class Living(Protocol):
    async def __call__(self, use: Callable[[LlamaCppServer], Awaitable[T]]) -> T: ...


class Snapshots:
    """Files in `folder`, one for each answer that is under way. `every` is how many tokens lie between two of them.

    `restored` counts the answers that went on from one: all that was saved was used, as far as it was asked for. A
    model whose restored states are of no use is noticed by the tokens it reads again, and is not saved any more. With
    `hands_over` an answer that is left is saved where it stands.
    """

    def __init__(self, folder: Path, *, every: int) -> None:
        self.restored = 0
        self.hands_over = False
        self._folder = folder
        self._every = every
        self._in_vain = 0

    async def answer(
        self, request: ModelRequest, *, slot: int, ask: Ask, living: Living
    ) -> AsyncGenerator[Chunk, None]:
        """The whole answer, on the given slot. `ask` asks for a segment, `living` does something with the process that
        lives now. Raises what they raise."""
        name = snapshot_name(request)
        held = await self._restore(living, slot, name) if request.continued is not None else 0
        whole: Finish | None = None
        while True:
            segment = _segment(request, self._every, slot)
            pid = 0
            said: list[str] = []
            finish: Finish | None = None
            try:
                async with ask(segment) as chunks:
                    pid = await living(_pid)  # not before: what was asked may have waited for the next process
                    async for chunk in chunks:
                        if isinstance(chunk, Finish):
                            finish = chunk
                            continue
                        if isinstance(chunk, Text):
                            said.append(chunk.text)
                        yield chunk
            except (asyncio.CancelledError, GeneratorExit):
                if self.hands_over:
                    await _to_its_end(self._save(living, slot, name, pid=pid))
                raise
            if finish is None:
                return  # whoever reads this says what that means
            if held and whole is None:
                self._judge(finish, held)
            whole = _together(whole, finish)
            rest = _rest(request, segment, finish, "".join(said))
            if rest is None:
                self._forget(name)
                yield whole
                return
            request = rest
            await self._save(living, slot, name, pid=pid)

    async def _restore(self, living: Living, slot: int, name: str) -> int:
        """How many tokens the slot has now from the file; 0 when there is none, or it could not be read."""
        file = self._folder / name
        if not file.exists():
            return 0
        if not await asyncio.to_thread(is_whole, file):
            _log.warning("a saved state is damaged, the text is read instead")
            return 0

        try:
            return await living(lambda server: server.restore(slot, name))
        except EngineError as exc:
            _log.warning("a saved state could not be read, the text is read instead: %s", exc.message)
            return 0

    def _judge(self, finish: Finish, held: int) -> None:
        used = finish.usage.cached_tokens
        if goes_on(finish, held):
            self._in_vain = 0
            self.restored += 1
            _log.info("an answer went on from its saved state: %d of %d tokens", used, held)
            return
        _log.warning("of a saved state of %d tokens %d were used, the rest was read again", held, used)
        self._in_vain = 0 if used else self._in_vain + 1
        if self._in_vain == _IN_VAIN:
            _log.warning("this model's saved states are of no use: nothing is saved any more")

    async def _save(self, living: Living, slot: int, name: str, *, pid: int) -> None:
        """Not from another process: its slot is empty, and the file still has the state before."""
        if self._in_vain >= _IN_VAIN:
            return
        file = self._folder / name
        part = new_part(file)

        async def save(server: LlamaCppServer) -> None:
            if server.process.pid == pid:
                await server.save(slot, part.name)
                await asyncio.to_thread(seal, part)
                part.replace(file)  # not in the thread, which goes on when this was given up

        try:
            async with asyncio.timeout(_SAVED_WITHIN):
                await living(save)
        except (EngineError, OSError) as exc:  # a TimeoutError is an OSError
            _log.warning("the state of an answer could not be saved: %s", exc)
        finally:
            part.unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
        make_room(self._folder)


def goes_on(finish: Finish, held: int) -> bool:
    """Whether a segment went on from a state of `held` tokens. What is asked for and not in it is read, and so is the
    last token in any case: a step of the model needs one."""
    usage = finish.usage
    return usage.cached_tokens >= min(held, usage.input_tokens - 1) - _BORDER and usage.cached_tokens > 0


async def _to_its_end(save: Coroutine[Any, Any, None]) -> None:
    """However often whoever waits for it is cancelled: a client may want it to end, and then its server ends too. What
    goes wrong is told and no more: whoever waits is leaving already."""

    async def saved() -> None:
        try:
            await save
        except Exception:
            _log.exception("the state of an answer that is left could not be saved")

    cancelled = False
    async with asyncio.TaskGroup() as group:
        saving = group.create_task(saved(), name="saving the state of an answer")
        while not saving.done():
            try:
                await asyncio.wait([saving])
            except asyncio.CancelledError:
                cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _pid(server: LlamaCppServer) -> int:
    return server.process.pid


def in_segments(request: ModelRequest) -> bool:
    """Whether an answer may be cut and go on without anybody noticing."""
    shaped = (request.grammar, request.regex, request.json_schema, request.logprobs, request.seed)
    free = not request.stop and not request.tools and all(shape is None for shape in shaped)
    return free and _SHAPING.isdisjoint(request.extra)


def snapshot_name(request: ModelRequest) -> str:
    """Of the file for an answer to this conversation, however much of it was said."""
    asked = msgspec.structs.replace(request, continued=None, max_tokens=None, request_id=None)
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:32] + ".kv"


def _segment(request: ModelRequest, every: int, slot: int) -> ModelRequest:
    tokens = every if request.max_tokens is None else min(every, request.max_tokens)
    extra = {**request.extra, "id_slot": slot, "cache_prompt": True}
    return msgspec.structs.replace(request, max_tokens=tokens, extra=extra)


def _rest(request: ModelRequest, segment: ModelRequest, finish: Finish, said: str) -> ModelRequest | None:
    """What is left to ask for; None when the answer is over, or nothing was said that it could go on from."""
    asked = segment.max_tokens or 0
    if finish.reason != "length" or finish.usage.output_tokens < asked or not said:
        return None  # fewer tokens than asked for: the context is full
    left = None if request.max_tokens is None else request.max_tokens - asked
    if left == 0:
        return None
    return msgspec.structs.replace(request, continued=(request.continued or "") + said, max_tokens=left)


def _together(before: Finish | None, finish: Finish) -> Finish:
    """One answer's finish: what its first segment read, and what all of them said."""
    if before is None:
        return finish
    usage = msgspec.structs.replace(before.usage, output_tokens=before.usage.output_tokens + finish.usage.output_tokens)
    timing = msgspec.structs.replace(
        before.timing,
        total_ms=before.timing.total_ms + finish.timing.total_ms,
        decode_ms=_sum(before.timing.decode_ms, finish.timing.decode_ms),
    )
    return Finish(reason=finish.reason, usage=usage, timing=timing)


def _sum(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else before + now
