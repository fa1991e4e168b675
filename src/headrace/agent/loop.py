"""The loop: model, tools, model, until the model has said what it wanted to say.

It holds no state that the log does not: whatever it decides, it decides from a fold of the records, so a worker that
takes a run over goes on as the first one would have.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from headrace.agent.calls import Calls
from headrace.agent.port import RunContext
from headrace.agent.prompt import Options, layout, read_options, request, sorted_specs
from headrace.agent.resume import next_step, standing
from headrace.agent.turn import Speaker
from headrace.clock import wall_ms
from headrace.engine.port import Engine, ModelRequest
from headrace.errors import ConfigError, EngineError, InvalidRequest, RunError, ToolCancelled, TurnLimit
from headrace.events import RunFinished, TurnFinished
from headrace.messages import Message, Timing, ToolSpec
from headrace.resilience.group import Group
from headrace.resilience.retry import Retry
from headrace.state import Turn, turn_messages
from headrace.tools.execution import MAX_RESULT_BYTES
from headrace.tools.port import Tool


class Agent:
    """A model with instructions and tools.

    `engine` and `model` are the server's and the engine's own when not given. After `max_turns` answers the model is
    asked once more, for words instead of calls. `retry` is for an engine that fails. `tail` makes a last message that
    may change from turn to turn (a date, what is known right now) without touching the prompt's prefix.
    """

    resumable = True
    commits_first = True

    def __init__(
        self,
        name: str,
        instructions: str = "",
        *,
        description: str = "",
        engine: Engine | None = None,
        model: str | None = None,
        tools: Sequence[Tool] = (),
        max_turns: int = 8,
        retry: Retry | None = None,
        max_result_bytes: int = MAX_RESULT_BYTES,
        tail: Callable[[RunContext], str] | None = None,
    ) -> None:
        self.name = name
        self.description = description or instructions.partition("\n")[0]
        self.instructions = instructions
        self.engine = engine
        self.model = model
        self.tools = {tool.spec.name: tool for tool in tools}
        self.max_turns = max_turns
        self.retry = retry or Retry()
        self.max_result_bytes = max_result_bytes
        self.tail = tail
        if len(self.tools) != len(tools):
            raise ConfigError(f"The agent {name} has two tools of the same name.", hint="Give one of them a name=….")
        if max_turns < 1:
            raise ConfigError(f"The agent {name} has max_turns={max_turns}.", hint="It needs at least one.")

    async def run(self, context: RunContext) -> RunFinished:
        """See `port.AgentPort`. The output is the last turn's text; what earlier turns said is in theirs."""
        engine = self.engine or context.engine
        if engine is None:
            raise ConfigError(f"The agent {self.name} has no engine.", hint="Pass engine=…, or configure a default.")
        return await _Run(self, context, engine).to_end()


class _Run:
    def __init__(self, agent: Agent, context: RunContext, engine: Engine) -> None:
        self._agent = agent
        self._context = context
        self._engine = engine
        self._options: Options = read_options(context.state.options)
        self._tools = _offered(agent, context)
        self._calls = Calls(
            context,
            agent.tools,
            parallel=self._options.parallel_tool_calls,
            max_result_bytes=agent.max_result_bytes,
        )
        self._messages: list[Message] = []
        self._steered = len({steer.turn for steer in context.state.steers if steer.turn is not None})
        self._usage = context.state.usage
        self._first_token_ms: float | None = None
        self._began = asyncio.get_running_loop().time()
        created = context.state.created_ts
        self._earlier_ms = max(0, wall_ms() - created) if created else 0

    async def to_end(self) -> RunFinished:
        try:
            last = await self._recover()
            while True:
                ended = self._ended(last) if last else None
                if ended is not None:
                    return ended
                self._steer()
                number = last.turn + 1 if last else 1
                last = await self._turn(number, closing=number > self._limit)
        except asyncio.CancelledError:
            if self._context.ending:
                self._calls.close_all(ToolCancelled("The run was cancelled or its time was up."))
            raise
        except (EngineError, RunError) as error:
            self._calls.close_all(ToolCancelled(f"The run ended: {error.message}"))
            raise

    @property
    def _limit(self) -> int:
        """Each turn that answers a steer comes on top."""
        return self._agent.max_turns + self._steered

    def _ended(self, last: Turn) -> RunFinished | None:
        """How the run ends after this turn, None if it goes on."""
        steered = bool(self._context.steering)
        if last.turn > self._limit and not steered:
            return self._stopped_early(last)
        calls = self._calls.of(last.turn)
        step = next_step(last, calls, client_tools=self._calls.client_tools, steered=steered)
        if step == "ask":
            return None
        return self._finished(last, "completed", "tool_calls" if step == "client" else last.finish_reason)

    async def _recover(self) -> Turn | None:
        """Go on from what the log holds; the last turn that stands, None before the first."""
        known = standing(self._context.state)
        self._messages += known.before
        if known.again is not None:
            return await self._ask_again(known.again)
        if known.last is None:
            return None
        last = known.last
        if known.cut:
            last = msgspec.structs.replace(last, finish_reason="error")
            self._context.emit(TurnFinished(turn=last.turn, finish_reason="error"))
        await self._calls.complete(last.turn)
        self._messages += [*turn_messages(last, self._calls.of(last.turn)), *known.after]
        return last

    async def _ask_again(self, cut: Turn) -> Turn:
        for call in self._calls.of(cut.turn):
            self._calls.close(call.call_id, ToolCancelled("The answer was cut before the arguments were whole."))
        if self._context.steering.interrupts:  # it came when the worker was lost: what was said is kept
            self._context.emit(TurnFinished(turn=cut.turn, finish_reason="interrupted"))
            self._messages += turn_messages(cut, ())
            return msgspec.structs.replace(cut, finish_reason="interrupted")
        return await self._turn(cut.turn, begun=cut, closing=cut.turn > self._limit)

    def _steer(self) -> None:
        steers = self._context.take_steers()
        self._steered += bool(steers)
        self._messages += steers

    async def _turn(self, number: int, *, begun: Turn | None = None, closing: bool = False) -> Turn:
        """One answer and the calls it makes, to the last result."""
        self._context.require_time()
        asked_ms = self._elapsed_ms()
        async with Group() as group:
            speaker = Speaker(
                self._context,
                self._engine,
                self._calls,
                group,
                turn=number,
                retry=self._agent.retry,
                stream_arguments=self._options.stream_arguments,
                closing=closing,
            )
            turn = await speaker.speak(lambda attempt: self._request(number, attempt, closing), begun=begun)
        self._messages += turn_messages(turn, self._calls.of(number))
        self._account(turn, asked_ms)
        return turn

    def _request(self, number: int, attempt: int, closing: bool) -> ModelRequest:
        tail = self._agent.tail(self._context) if self._agent.tail else ""
        return request(
            self._options,
            messages=layout(
                system="\n\n".join(filter(None, [self._agent.instructions, self._options.instructions])),
                history=self._context.history,
                turns=self._messages,
                tail=tail,
            ),
            tools=self._tools,
            model=self._context.state.model or self._agent.model,
            session=self._context.state.thread_id,
            scope=self._context.scope,
            request_id=f"{self._context.run_id}-{number}-{attempt}",
            first=number == 1,
            closing=closing,
        )

    def _account(self, turn: Turn, asked_ms: float) -> None:
        self._usage = self._usage + turn.usage
        if self._first_token_ms is None and turn.timing.first_token_ms is not None:
            self._first_token_ms = round(asked_ms + turn.timing.first_token_ms, 3)

    def _elapsed_ms(self) -> float:
        """Since the run was asked for, the time before a restart included."""
        return self._earlier_ms + (asyncio.get_running_loop().time() - self._began) * 1000

    def _finished(self, last: Turn, status: Literal["completed", "stopped_early"], reason: str | None) -> RunFinished:
        return RunFinished(
            status=status,
            output=last.text,
            finish_reason=reason or "stop",
            usage=self._usage,
            timing=Timing(first_token_ms=self._first_token_ms, total_ms=round(self._elapsed_ms(), 3)),
        )

    def _stopped_early(self, last: Turn) -> RunFinished:
        """After the one turn that was to be words only."""
        if not last.text:
            raise TurnLimit(
                f"After {self._limit} turns the model was asked for an answer and gave none.", hint="Raise max_turns."
            )
        return self._finished(last, "stopped_early", last.finish_reason)


def _offered(agent: Agent, context: RunContext) -> tuple[ToolSpec, ...]:
    for spec in context.state.client_tools:
        if spec.name in agent.tools:
            raise InvalidRequest(
                f"The agent {agent.name} has a tool {spec.name} of its own.", hint="Give your tool another name."
            )
    return sorted_specs([*(tool.spec for tool in agent.tools.values()), *context.state.client_tools])
