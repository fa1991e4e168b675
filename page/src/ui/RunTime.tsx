/**
 * Where this run's time goes: a strip that grows while it runs, and behind it the waterfall and the workflow's graph.
 * Redrawn twice a second and whenever a phase begins or ends, not with every token.
 */
import { useComputed } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { axisEnd, lasted, type Node, type RunState, type Span, speed, type Timeline } from "../core";
import type { RunView } from "../chat/run";
import { duration } from "./format";
import { Graph } from "./Graph";

const TICK_MS = 500;

export function RunTime({ run }: { run: RunView }) {
  const [open, setOpen] = useState(false);
  const shape = useComputed(() => run.timeline.value.spans.map((span) => (span.end === null ? "o" : "c")).join(""));
  const word = useComputed(() => summary(run.state.value, run.stopping.value).word);
  const tone = useComputed(() => summary(run.state.value, run.stopping.value).tone);
  const running = useComputed(() => run.running);
  const nodes = useComputed(() => run.state.value.nodes);
  const now = useNow(run, running.value);
  void shape.value;
  const timeline = run.timeline.peek();
  const toggle = () => {
    setOpen(!open);
    if (!open) void run.loadTimeline();
  };
  return (
    <div class="run-time">
      <button type="button" class="strip" aria-expanded={open} onClick={toggle} title="Where the time went">
        <Bars timeline={timeline} now={now} rows={false} />
        <span class="strip-text">
          <span class={`phase-word ${tone.value}`}>{word.value}</span>
          <span class="figures">{figures(run, timeline, now)}</span>
          <span class="chevron" aria-hidden="true" />
        </span>
      </button>
      {open && <Details timeline={timeline} nodes={nodes.value} now={now} deliveryMs={run.deliveryMs.value} />}
    </div>
  );
}

function useNow(run: RunView, running: boolean): number {
  const [now, setNow] = useState(run.serverNow());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNow(run.serverNow()), TICK_MS);
    return () => clearInterval(timer);
  }, [run, running]);
  return running ? now : run.serverNow();
}

/** What it is doing, in a word or two. */
function summary(state: RunState, stopping: boolean): { word: string; tone: string } {
  switch (state.status) {
    case "completed":
      return { word: "Done", tone: "good" };
    case "cancelled":
      return { word: "Stopped", tone: "" };
    case "stopped_early":
      return { word: "Stopped early", tone: "warn" };
    case "failed":
      return { word: "Failed", tone: "bad" };
    case "waiting":
      return { word: "Waits for you", tone: "warn" };
    case "queued":
      return { word: state.queue_position ? `In the queue, place ${state.queue_position}` : "Asking", tone: "busy" };
    case "running":
      return { word: stopping ? "Stopping" : doing(state), tone: "busy" };
  }
}

function doing(state: RunState): string {
  const call = state.tool_calls.find((each) => !each.done && each.arguments !== null);
  if (call) return `Running ${call.name}`;
  const turn = state.turns[state.turns.length - 1];
  if (turn && turn.finish_reason === null) {
    if (turn.text) return "Writing";
    return turn.thinking ? "Thinking" : "Waiting for the first token";
  }
  const nodes = state.nodes.filter((node) => node.status === "running").map((node) => node.node);
  return nodes.length > 0 ? nodes.join(" and ") : "Working";
}

function figures(run: RunView, timeline: Timeline, now: number): string {
  const state = run.state.peek();
  const first = timeline.firstText === null ? state.timing.first_token_ms : timeline.firstText - timeline.origin;
  const rate = speed(timeline, now);
  const total = state.ended_ts !== null ? state.ended_ts - state.created_ts : timeline.origin ? now - timeline.origin : 0;
  return [
    first !== null && `first word ${duration(first)}`,
    rate !== null && `${Math.round(rate)} tokens/s`,
    total > 0 && `${duration(total)}${state.ended_ts === null ? "" : " in all"}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

/**
 * The spans to scale in one picture: on one line, or a row each. Coordinates are the run's own milliseconds, so a tick
 * changes the view box and the spans that are still open, nothing else.
 */
function Bars({ timeline, now, rows }: { timeline: Timeline; now: number; rows: boolean }) {
  const total = axisEnd(timeline, now) - timeline.origin;
  const shown = timeline.spans;
  const height = rows ? Math.max(1, shown.length) : 1;
  return (
    <svg class={rows ? "bars" : "bars line"} viewBox={`0 0 ${total} ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {shown.map((span, index) => (
        <rect
          key={span.id}
          class={`phase-${span.phase} ${span.status}`}
          x={span.start - timeline.origin}
          y={rows ? index + 0.28 : 0}
          width={Math.max(lasted(span, now), total / 400)}
          height={rows ? 0.44 : 1}
        />
      ))}
    </svg>
  );
}

interface DetailsProps {
  readonly timeline: Timeline;
  readonly nodes: readonly Node[];
  readonly now: number;
  readonly deliveryMs: number | null;
}

function Details({ timeline, nodes, now, deliveryMs }: DetailsProps) {
  if (timeline.origin === 0) return <p class="details-empty">Reading the run's records…</p>;
  return (
    <div class="details">
      <div class="waterfall">
        <ol class="rows">
          {timeline.spans.map((span) => (
            <Row key={span.id} span={span} now={now} />
          ))}
        </ol>
        <Bars timeline={timeline} now={now} rows />
      </div>
      <p class="axis">
        <span>0</span>
        <span>{duration(axisEnd(timeline, now) - timeline.origin)}</span>
      </p>
      {deliveryMs !== null && <p class="delivery">Delivery added {duration(deliveryMs)} to the first word.</p>}
      {nodes.some((node) => node.needs.length > 0) && <Graph nodes={nodes} />}
    </div>
  );
}

function Row({ span, now }: { span: Span; now: number }) {
  const mark = span.status === "failed" || span.status === "skipped" ? span.status : "";
  // The model's name is long and the same in each turn: it is there for who asks.
  const note = span.phase === "first_token" ? mark : span.note || mark;
  return (
    <li class={mark}>
      <span class={`dot phase-${span.phase}`} aria-hidden="true" />
      <span class="name" title={[span.label, span.note].filter(Boolean).join(", ")}>
        {span.label}
        {note && <small> {note}</small>}
      </span>
      <span class="ms">{span.phase === "cache" ? "hit" : duration(lasted(span, now))}</span>
    </li>
  );
}
