/** The parts of an answer that are not text: thinking, tool calls, questions to the reader, steers, faults. */
import { useEffect, useState } from "preact/hooks";
import type { Fault, Input, Json, Steer, ToolCall, Turn } from "../core";
import type { RunView } from "../chat/run";
import { Growing } from "../text/Markdown";
import { brief, duration, readable } from "./format";

/** Folded; while it thinks it says for how long. `ms` is the measured time, null while it lasts or when unknown. */
export function Thinking({ turn, ms, running }: { turn: Turn; ms: number | null; running: boolean }) {
  const seconds = useSeconds(running);
  const [open, setOpen] = useState(false);
  const label = running ? `Thinking, ${seconds} s` : ms === null ? "Thought" : `Thought for ${duration(ms)}`;
  return (
    <details class="thinking" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{label}</summary>
      {open && (
        <div class="thinking-text">
          <Growing text={turn.thinking} />
        </div>
      )}
    </details>
  );
}

function useSeconds(running: boolean): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setSeconds((value) => value + 1), 1_000);
    return () => clearInterval(timer);
  }, [running]);
  return seconds;
}

export function ToolCard({ call, over, input, run }: { call: ToolCall; over: boolean; input?: Input | undefined; run: RunView }) {
  const status = toolStatus(call, over);
  return (
    <section class={`card tool ${status.tone}`} aria-label={`Tool ${call.name}`}>
      <header>
        <code class="tool-name">{call.name}</code>
        <span class="tool-args">{call.arguments === null ? "…" : brief(call.arguments, 80)}</span>
        <span class={`badge ${status.tone}`}>{status.word}</span>
        {call.done && <span class="ms">{duration(call.ms)}</span>}
      </header>
      {call.progress !== null && <Progress data={call.progress} />}
      {call.error && <FaultText fault={call.error} />}
      {input && !input.received && <InputForm input={input} run={run} over={over} />}
      {(call.done && !call.error) || hasMore(call) ? (
        <details>
          <summary>{call.done && !call.error ? "Result" : "Arguments"}</summary>
          {hasMore(call) && <pre tabIndex={0}>{readable(call.arguments)}</pre>}
          {call.done && !call.error && <pre tabIndex={0}>{readable(call.result)}</pre>}
        </details>
      ) : null}
    </section>
  );
}

const hasMore = (call: ToolCall) => call.arguments !== null && JSON.stringify(call.arguments).length > 80;

function toolStatus(call: ToolCall, over: boolean): { word: string; tone: string } {
  if (call.error) return { word: call.source === "unknown_outcome" ? "outcome unknown" : "failed", tone: "bad" };
  if (call.done) return { word: call.source === "ran" ? "done" : call.source.replace("_", " "), tone: "good" };
  if (over) return { word: "not run", tone: "" };
  return { word: call.arguments === null ? "writing" : "running", tone: "busy" };
}

/** A percentage as a bar, anything else as its words. */
function Progress({ data }: { data: Json }) {
  const percent = percentOf(data);
  if (percent === null) return <p class="progress-text">{brief(data, 200)}</p>;
  return (
    <p class="progress-text">
      <progress max={100} value={percent} aria-label="Progress" /> {Math.round(percent)} %
    </p>
  );
}

function percentOf(data: Json): number | null {
  if (typeof data === "number") return data <= 1 ? data * 100 : data;
  if (typeof data !== "object" || data === null || Array.isArray(data)) return null;
  const fields = data as { readonly [key: string]: Json };
  const { percent, fraction, done, total } = fields;
  if (typeof percent === "number") return percent;
  if (typeof fraction === "number") return fraction * 100;
  return typeof done === "number" && typeof total === "number" && total > 0 ? (done / total) * 100 : null;
}

export function FaultText({ fault }: { fault: Fault }) {
  return (
    <p class="fault">
      {fault.message} {fault.hint && <span class="hint">{fault.hint}</span>} <code>{fault.code}</code>
    </p>
  );
}

/** Something the run waits for: an approval, a choice or words. */
export function InputForm({ input, run, over }: { input: Input; run: RunView; over: boolean }) {
  const [text, setText] = useState("");
  const [sent, setSent] = useState(false);
  const [failed, setFailed] = useState<string | null>(null);
  const send = (value: Json) => {
    setSent(true);
    setFailed(null);
    run.answer(input.input_id, value).catch((error: Error) => {
      setSent(false);
      setFailed(error.message);
    });
  };
  if (over) return <p class="answered">Not answered: {input.prompt}</p>;
  const choices = choicesOf(input);
  return (
    <div class="ask-you">
      <p>{input.prompt || (input.kind === "approval" ? "May this be done?" : "The run asks you.")}</p>
      {choices ? (
        <p class="choices">
          {choices.map(({ label, value, main }) => (
            <button type="button" key={label} class={main ? "main" : ""} disabled={sent} onClick={() => send(value)}>
              {label}
            </button>
          ))}
        </p>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (text.trim()) send(text);
          }}
        >
          <input value={text} onInput={(event) => setText(event.currentTarget.value)} aria-label="Your answer" disabled={sent} />
          <button type="submit" class="main" disabled={sent}>
            Answer
          </button>
        </form>
      )}
      {failed && <p class="fault">{failed}</p>}
    </div>
  );
}

interface Choice {
  readonly label: string;
  readonly value: Json;
  readonly main: boolean;
}

/** An approval is answered by what its schema says: an object with `approved`, or a plain boolean. */
function choicesOf({ kind, schema }: Input): Choice[] | null {
  const listed = schema["enum"];
  if (Array.isArray(listed)) return listed.map((value, index) => ({ label: String(value), value, main: index === 0 }));
  if (kind !== "approval" && schema["type"] !== "boolean") return null;
  const properties = schema["properties"] as { readonly [key: string]: Json } | undefined;
  const value = (approved: boolean): Json => (properties && "approved" in properties ? { approved } : approved);
  const [yes, no] = kind === "approval" ? ["Approve", "Deny"] : ["Yes", "No"];
  return [
    { label: yes!, value: value(true), main: true },
    { label: no!, value: value(false), main: false },
  ];
}

export function answerText(value: Json): string {
  const approved = typeof value === "object" && value !== null && "approved" in value ? value.approved : value;
  if (approved === true) return "yes";
  return approved === false ? "no" : brief(value, 120);
}

export function SteerNote({ steer, over }: { steer: Steer; over: boolean }) {
  const word = { applied: "added", returned: "came too late" }[steer.status] ?? (over ? "not read" : "on its way");
  return (
    <p class={`steer ${steer.status}`}>
      <span class="steer-text">{steer.text}</span>
      <span class="badge" title={steer.reason ?? undefined}>
        {word}
      </span>
    </p>
  );
}
