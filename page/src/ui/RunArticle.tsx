/** A question and what came of it. */
import { useMemo, useState } from "preact/hooks";
import { type Input, isEnded, type RunState, type Source, type Span, textOf, type ToolCall, type Turn } from "../core";
import type { RunView } from "../chat/run";
import { ask, askInstead, passages } from "../chat/store";
import { type Cite, Markdown } from "../text/Markdown";
import { CopyButton } from "./CopyButton";
import { answerText, FaultText, InputForm, SteerNote, Thinking, ToolCard } from "./cards";
import { clock } from "./format";
import { RunTime } from "./RunTime";

export function RunArticle({ run, last }: { run: RunView; last: boolean }) {
  const state = run.state.value;
  const over = !run.running;
  return (
    <article class={over ? "run" : "run live"} aria-busy={!over}>
      <Question run={run} state={state} over={over} />
      <RunTime run={run} />
      <Answer run={run} state={state} over={over} />
      {over && <Ending run={run} state={state} last={last} />}
    </article>
  );
}

function Question({ run, state, over }: { run: RunView; state: RunState; over: boolean }) {
  const [editing, setEditing] = useState(false);
  const asked = state.input[state.input.length - 1]?.content ?? "";
  const earlier = state.input.slice(0, -1).filter((message) => message.role !== "system");
  return (
    <>
      {earlier.map((message, index) => (
        <div key={index} class={`earlier ${message.role}`}>
          {message.role === "user" ? <h2>{message.content}</h2> : <Markdown text={message.content} open={false} cite={noCite} />}
        </div>
      ))}
      {editing ? (
        <EditForm asked={asked} run={run} onDone={() => setEditing(false)} />
      ) : (
        <header class="question">
          <h2>{asked || "…"}</h2>
          {over && (
            <button type="button" class="quiet" onClick={() => setEditing(true)} title="Ask it in other words, in a new thread">
              Edit
            </button>
          )}
        </header>
      )}
    </>
  );
}

function EditForm({ asked, run, onDone }: { asked: string; run: RunView; onDone(): void }) {
  const [text, setText] = useState(asked);
  return (
    <form
      class="edit"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim()) askInstead(run, text.trim());
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        onDone();
      }}
    >
      <textarea value={text} rows={3} aria-label="The question" ref={(element) => element?.focus()} onInput={(event) => setText(event.currentTarget.value)} />
      <p class="choices">
        <button type="submit" class="main">
          Run again
        </button>
        <button type="button" onClick={onDone}>
          Keep
        </button>
      </p>
    </form>
  );
}

const noCite: Cite = () => null;

function Answer({ run, state, over }: { run: RunView; state: RunState; over: boolean }) {
  const cite = useMemo(() => citer(state.sources), [state.sources]);
  const lastTurn = state.turns[state.turns.length - 1];
  const early = state.tool_calls.filter((call) => !state.turns.some((turn) => turn.turn === call.turn));
  const spoken = state.turns.some((turn) => turn.text);
  return (
    <div class="answer">
      <Calls calls={early} run={run} state={state} over={over} />
      {state.turns.map((turn) => (
        <TurnView key={turn.turn} run={run} state={state} turn={turn} open={!over && turn === lastTurn} cite={cite} />
      ))}
      {!spoken && state.output && <Markdown text={state.output} open={false} cite={cite} />}
      {state.steers.filter((steer) => !state.turns.some((turn) => turn.turn === steer.turn)).map((steer) => (
        <SteerNote key={steer.steer_id} steer={steer} over={over} />
      ))}
      {looseInputs(state).map((input) => (
        <section key={input.input_id} class="card wait" aria-label="The run asks you">
          <InputForm input={input} run={run} over={over} />
        </section>
      ))}
    </div>
  );
}

/** What the run asks without a call that it belongs to. */
const looseInputs = (state: RunState): Input[] =>
  state.inputs.filter((input) => !input.received && !state.tool_calls.some((call) => call.call_id === input.call_id));

interface TurnProps {
  readonly run: RunView;
  readonly state: RunState;
  readonly turn: Turn;
  readonly open: boolean;
  readonly cite: Cite;
}

function TurnView({ run, state, turn, open, cite }: TurnProps) {
  const thinkingNow = open && turn.text === "" && turn.finish_reason === null;
  return (
    <>
      {state.steers.filter((steer) => steer.turn === turn.turn).map((steer) => (
        <SteerNote key={steer.steer_id} steer={steer} over={!run.running} />
      ))}
      {turn.thinking && <Thinking turn={turn} ms={thoughtFor(run, state, turn)} running={thinkingNow} />}
      {turn.text && <Markdown text={turn.text} open={open && turn.finish_reason === null} cite={cite} />}
      {turn.retracted > 0 && <p class="aside-note">The engine failed on the way; the answer was begun again.</p>}
      <Calls calls={state.tool_calls.filter((call) => call.turn === turn.turn)} run={run} state={state} over={!run.running} />
    </>
  );
}

/** The nth turn that thought has the nth thinking span; without spans nobody measured it. */
function thoughtFor(run: RunView, state: RunState, turn: Turn): number | null {
  const spans = run.timeline.value.spans.filter((span: Span) => span.phase === "thinking");
  const span = spans[state.turns.filter((each) => each.thinking).indexOf(turn)];
  return span && span.end !== null ? span.end - span.start : null;
}

function Calls({ calls, run, state, over }: { calls: readonly ToolCall[]; run: RunView; state: RunState; over: boolean }) {
  return (
    <>
      {calls.map((call) => (
        <ToolCard key={call.call_id} call={call} over={over} run={run} input={state.inputs.find((input) => input.call_id === call.call_id)} />
      ))}
    </>
  );
}

function citer(sources: readonly Source[]): Cite {
  return (number) => {
    const source = sources[number - 1];
    if (!source) return null;
    return (
      <button
        type="button"
        class="cite"
        aria-label={`Source ${number}: ${source.title}`}
        title={source.title}
        onClick={() => (passages.value = { sources, chosen: number - 1 })}
      >
        {number}
      </button>
    );
  };
}

function Ending({ run, state, last }: { run: RunView; state: RunState; last: boolean }) {
  const text = textOf(state);
  const problem = run.problem.value;
  return (
    <footer class="ending">
      {problem && (
        <div class="card bad" role="alert">
          <FaultText fault={problem} />
        </div>
      )}
      {state.error && (
        <div class="card bad">
          <FaultText fault={state.error} />
        </div>
      )}
      <Notes run={run} state={state} />
      <Sources sources={state.sources} />
      <p class="actions">
        {text && <CopyButton text={text} what="the answer" />}
        {last && (isEnded(state) || problem) && (
          <button type="button" class="quiet" onClick={() => ask(state.input[state.input.length - 1]?.content ?? "")}>
            {state.status === "completed" ? "Ask again" : "Retry"}
          </button>
        )}
      </p>
    </footer>
  );
}

function Notes({ run, state }: { run: RunView; state: RunState }) {
  const notes = [
    state.status === "cancelled" && "Stopped. What was said until then is kept.",
    state.status === "stopped_early" && `Ended early: ${state.finish_reason ?? "a limit was reached"}.`,
    run.endedUnseen.value !== null && `Finished while you were away, at ${clock(run.endedUnseen.value)}.`,
    ...state.inputs.filter((input) => input.received).map((input) => `You answered “${input.prompt || input.kind}”: ${answerText(input.value)}.`),
    state.recoveries > 0 && "Another worker went on with this run.",
    ...state.cache_hits.map((hit) => `Answered with the ${hit.layer} cache.`),
    ...state.routes.filter((route) => route.fallback_of).map((route) => `${route.model} answered instead of ${route.fallback_of}: ${route.why}.`),
    ...state.nodes.filter((node) => node.status === "fallback").map((node) => `${node.node} was late or failed; its fallback was used.`),
  ].filter((note): note is string => typeof note === "string");
  return notes.length === 0 ? null : (
    <ul class="notes">
      {notes.map((note) => (
        <li key={note}>{note}</li>
      ))}
    </ul>
  );
}

function Sources({ sources }: { sources: readonly Source[] }) {
  if (sources.length === 0) return null;
  return (
    <ol class="sources" aria-label="Sources">
      {sources.map((source, index) => (
        <li key={source.id}>
          <button type="button" onClick={() => (passages.value = { sources, chosen: index })}>
            <span class="cite" aria-hidden="true">
              {index + 1}
            </span>
            {source.title}
          </button>
        </li>
      ))}
    </ol>
  );
}
