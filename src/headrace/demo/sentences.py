"""Answers in the documents' own sentences, for a small model that keeps to a grammar.

A tool is chosen by intent, and its call is recorded like any other, in a turn of its own that no model has spoken.
Each steer that arrives is a question of its own, answered in a further round.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.agent.calls import Calls
from headrace.agent.continuation import Said, rest_of
from headrace.agent.port import RunContext
from headrace.agent.turn import Speaker
from headrace.demo import wording
from headrace.demo.documents import language
from headrace.demo.index import Found
from headrace.demo.intent import Intent
from headrace.demo.library import Library
from headrace.demo.script import Script
from headrace.demo.steps import Steps, citation
from headrace.engine.port import Engine, Finish, ModelRequest
from headrace.errors import AgentFailed, HeadraceError, ToolCancelled
from headrace.events import RunFinished, TurnFinished, TurnStarted
from headrace.messages import Usage
from headrace.resilience.group import Group
from headrace.resilience.retry import Retry
from headrace.state import ToolCall, Turn
from headrace.tools.assembly import CallWhole
from headrace.tools.builtin import calculator, clock

_TOOLS = {tool.spec.name: tool for tool in (calculator, clock)}
_MAX_TOKENS = 200


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer node leaves behind."""

    turn: int
    text: str
    finish_reason: str


class SentenceAnswers:
    """One run."""

    def __init__(self, context: RunContext, engine: Engine, library: Library, *, deadline: float) -> None:
        self._context = context
        self._engine = engine
        self._library = library
        self._deadline = deadline
        self._calls = Calls(context, _TOOLS)
        self._usage: Usage = context.state.usage
        self._turn = 0
        self._known = {turn.turn: turn for turn in context.state.turns}
        self._failure: HeadraceError | None = None

    async def to_end(self) -> RunFinished:
        """Raises what the engine or the run's deadline raises; on cancellation every open call gets its result."""
        try:
            said = await self._rounds()
        except BaseException:
            if self._context.cancelling:
                self._calls.close_all(ToolCancelled("The run was cancelled."))
            raise
        return RunFinished(status="completed", output=said.text, finish_reason=said.finish_reason, usage=self._usage)

    async def _rounds(self) -> _Said:
        questions = [self._context.question, *_steered(self._context)]
        number = 0
        while True:
            said = await self._round(number, questions[number])
            number += 1
            if number == len(questions):
                steers = self._context.take_steers()
                if not steers:
                    return said
                questions.append("\n".join(steer.content for steer in steers))

    async def _round(self, number: int, question: str) -> _Said:
        self._context.require_time()
        suffix = f" {number + 1}" if number else ""
        steps = Steps(question, self._library, deadline=self._deadline, suffix=suffix)

        async def answer(context: RunContext, inputs: Mapping[str, Any]) -> _Said:
            try:
                return await self._answer(number, question, *steps.read(inputs))
            except HeadraceError as error:
                self._failure = error
                raise

        nodes = await steps.answer_with(answer).run(self._context)
        outcome = nodes[steps.answer]
        if outcome.status == "completed":
            said = msgspec.convert(outcome.result, _Said)
            self._turn = said.turn
            return said
        raise self._failure or AgentFailed(outcome.error.message if outcome.error else "The answer failed.")

    async def _answer(self, number: int, question: str, intent: Intent, found: Found | None) -> _Said:
        lang = language(question)
        if intent.kind == "calculator":
            call = await self._call(number, "calculator", {"expression": intent.expression})
            done = wording.calculator_sentence(intent.expression, call.result)
            return await self._speak(wording.exactly(question, lang, _outcome(call, done)))
        if intent.kind == "clock":
            call = await self._call(number, "clock", {"zone": intent.zone})
            return await self._speak(wording.exactly(question, lang, _outcome(call, _time(lang, call))))
        if intent.kind == "greeting":
            return await self._speak(wording.greeting(question, lang))
        if found is None:
            return await self._speak(wording.from_memory(question, lang))
        if not found.relevant:
            return await self._speak(wording.refusal(question, lang))
        sentences = [hit.passage.text for hit in found.hits]
        return await self._speak(wording.from_sentences(question, lang, sentences, found.margin), found)

    async def _call(self, number: int, name: str, arguments: dict[str, Any]) -> ToolCall:
        """The call of this round, in a turn of its own. After a restart it goes on from what is known of it."""
        self._turn += 1
        turn, call_id = self._turn, f"{self._context.run_id}-call-{number + 1}"
        if turn not in self._known:
            self._context.emit(TurnStarted(turn=turn, model="rules", engine="intent"))
        async with Group() as group:
            if not any(call.arguments is not None for call in self._calls.of(turn)):
                text = msgspec.json.encode(arguments).decode()
                self._calls.end(CallWhole(index=0, call_id=call_id, name=name, arguments=text), turn, group)
        await self._calls.complete(turn)
        if not self._is_finished(turn):
            self._context.emit(TurnFinished(turn=turn, finish_reason="tool_calls"))
        return self._calls.of(turn)[0]

    async def _speak(self, script: Script, found: Found | None = None) -> _Said:
        """One turn under the script's grammar, with the sources it uses: as soon as that is certain. A turn that a
        restart finds finished is not spoken again, one that it finds cut goes on."""
        self._turn += 1
        turn = self._turn
        self._cite(found, script.certain)
        spoken = self._known[turn] if self._is_finished(turn) else await self._ask(script, turn)
        self._cite(found, [text for text in script.possible if text in spoken.text])
        return _Said(turn=turn, text=spoken.text.strip(), finish_reason=spoken.finish_reason or "stop")

    async def _ask(self, script: Script, turn: int) -> Turn:
        def go_on(request: ModelRequest, said: Said) -> ModelRequest | Finish | None:
            return rest_of_script(script, request, said)

        async with Group() as group:
            speaker = Speaker(self._context, self._engine, self._calls, group, turn=turn, retry=Retry(), go_on=go_on)
            spoken = await speaker.speak(
                lambda attempt: self._request(script, turn, attempt), begun=self._known.get(turn)
            )
        self._usage = self._usage + spoken.usage
        return spoken

    def _is_finished(self, turn: int) -> bool:
        """Before this worker took the run."""
        return turn in self._known and self._known[turn].finish_reason is not None

    def _cite(self, found: Found | None, texts: Any) -> None:
        known = {source.id for source in self._context.state.sources}
        for hit in found.hits if found else ():
            if hit.passage.text in texts and hit.passage.id not in known:
                self._context.emit(citation(hit))

    def _request(self, script: Script, turn: int, attempt: int) -> ModelRequest:
        return ModelRequest(
            prompt=script.prompt,
            grammar=script.grammar,
            stop=("\n",),
            max_tokens=_MAX_TOKENS,
            temperature=0.0,
            session=self._context.state.thread_id,
            request_id=f"{self._context.run_id}-{turn}-{attempt}",
        )


def rest_of_script(script: Script, request: ModelRequest, said: Said) -> ModelRequest | Finish | None:
    """A grammar does not go on by itself, but what is left of a script is known."""
    left = script.after(said.text)
    if left is None:
        return None
    if left.over:
        return Finish(reason="stop")
    return rest_of(msgspec.structs.replace(request, grammar=left.grammar), said)


def _steered(context: RunContext) -> list[str]:
    """What earlier steers asked, one text for each turn that answered some: known only after a restart."""
    by_turn: dict[int, list[str]] = {}
    for steer in context.state.steers:
        if steer.status == "applied" and steer.turn is not None:
            by_turn.setdefault(steer.turn, []).append(steer.text)
    return ["\n".join(texts) for _, texts in sorted(by_turn.items())]


def _outcome(call: ToolCall, done: str) -> str:
    return done if call.error is None else call.error.message


def _time(lang: Any, call: ToolCall) -> str:
    if call.error is not None:
        return ""
    return wording.clock_sentence(lang, call.result["time"], call.result["weekday"], call.result["zone"])
