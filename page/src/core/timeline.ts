/**
 * Where a run's time went, folded from its records. Pure: `now` is an argument.
 *
 * Every time is a record's `ts`, so one clock (the server's) made them all; a span that is still open ends at the
 * `now` that the caller derives from that clock. What a phase cost a person also depends on the way to them:
 * `delivery` compares two durations, each measured on one machine, and never two machines' clocks.
 */
import type { RunRecord } from "./types";

export type Phase = "queue" | "node" | "first_token" | "thinking" | "decode" | "tool" | "wait" | "cache";

export interface Span {
  readonly id: string;
  readonly phase: Phase;
  readonly label: string;
  readonly start: number;
  /** null while it lasts. */
  readonly end: number | null;
  readonly status: "running" | "ok" | "failed" | "skipped";
  /** Tokens that came in this span, as records counted them. */
  readonly tokens: number;
  readonly note: string;
}

export interface Timeline {
  readonly origin: number;
  readonly end: number | null;
  /** In order of their start. */
  readonly spans: readonly Span[];
  /** When the first word of an answer came, or null. */
  readonly firstText: number | null;
  readonly lastTs: number;
}

export const emptyTimeline: Timeline = { origin: 0, end: null, spans: [], firstText: null, lastTs: 0 };

export function extend(timeline: Timeline, record: RunRecord): Timeline {
  const stamped = { ...timeline, lastTs: record.ts };
  const step = STEPS[record.type];
  return step ? step(stamped, record) : stamped;
}

/** Milliseconds this span has lasted by `now`. */
export const lasted = (span: Span, now: number): number => Math.max(0, (span.end ?? now) - span.start);

/** The end of the axis: the run's end, or `now`, and at least one millisecond after the origin. */
export const axisEnd = (timeline: Timeline, now: number): number =>
  Math.max(timeline.origin + 1, timeline.end ?? Math.max(now, timeline.lastTs));

/** Tokens per second of all decoding and thinking, or null when too few came to say. */
export function speed(timeline: Timeline, now: number): number | null {
  const spoken = timeline.spans.filter((span) => span.phase === "decode" || span.phase === "thinking");
  const tokens = spoken.reduce((sum, span) => sum + span.tokens, 0);
  const ms = spoken.reduce((sum, span) => sum + lasted(span, now), 0);
  return tokens >= 8 && ms >= 50 ? (tokens / ms) * 1000 : null;
}

/**
 * What the way from server to reader added to the first word: how long the reader waited for it, less how long the
 * server says it took. Null unless this page asked the question and saw the word come.
 */
export function delivery(timeline: Timeline, askedAt: number | null, sawAt: number | null): number | null {
  if (askedAt === null || sawAt === null || timeline.firstText === null) return null;
  return Math.max(0, sawAt - askedAt - (timeline.firstText - timeline.origin));
}

type Step = (timeline: Timeline, record: RunRecord) => Timeline;

function open(timeline: Timeline, phase: Phase, key: string, label: string, ts: number, note = ""): Timeline {
  const span: Span = {
    id: `${phase}:${key}:${timeline.spans.length}`,
    phase,
    label,
    start: ts,
    end: null,
    status: "running",
    tokens: 0,
    note,
  };
  return { ...timeline, spans: [...timeline.spans, span] };
}

function close(
  timeline: Timeline,
  which: (span: Span) => boolean,
  ts: number,
  status: Span["status"] = "ok",
  note = "",
  ms = 0,
): Timeline {
  const spans = timeline.spans.map((span) =>
    span.end === null && which(span)
      ? { ...span, start: startOf(timeline, span, ts, ms), end: ts, status, note: note || span.note }
      : span,
  );
  return { ...timeline, spans };
}

/** Work that was measured (`ms`) may have begun before its record was stamped: stamps are made once per loop tick. */
const startOf = (timeline: Timeline, span: Span, ts: number, ms: number) =>
  Math.max(timeline.origin, Math.min(span.start, ts - ms));

const inPhase =
  (...phases: Phase[]) =>
  (span: Span) =>
    phases.includes(span.phase);

const named = (phase: Phase, label: string) => (span: Span) => span.phase === phase && span.id.startsWith(`${phase}:${label}:`);

/** The turn speaks: the wait for its first token is over, and thinking gives way to text or the other way round. */
function speak(timeline: Timeline, phase: "thinking" | "decode", record: RunRecord): Timeline {
  const last = timeline.spans[timeline.spans.length - 1];
  let next = timeline;
  if (!(last && last.end === null && last.phase === phase)) {
    if (!timeline.spans.some((span) => span.end === null && span.phase === phase)) {
      next = close(next, inPhase("queue", "first_token", "thinking", "decode"), record.ts);
      next = open(next, phase, "", phase === "thinking" ? "Thinking" : "Writing", record.ts);
    }
  }
  const spans = next.spans.map((span) =>
    span.end === null && span.phase === phase ? { ...span, tokens: span.tokens + record.n } : span,
  );
  const firstText = phase === "decode" ? (next.firstText ?? record.ts) : next.firstText;
  return { ...next, spans, firstText };
}

function end(timeline: Timeline, ts: number, status: Span["status"]): Timeline {
  return { ...close(timeline, () => true, ts, status), end: ts };
}

const STATUS: { readonly [status: string]: Span["status"] } = { completed: "ok", fallback: "failed", failed: "failed", skipped: "skipped" };

const STEPS: { readonly [type: string]: Step } = {
  "run.started": (timeline, { ts }) => ({ ...timeline, origin: ts }),
  "run.queued": (timeline, { ts, data }) => {
    if (data.position === 0) return close(timeline, inPhase("queue"), ts);
    return timeline.spans.some((span) => span.end === null && span.phase === "queue")
      ? timeline
      : open(timeline, "queue", "", "Queue", ts, `place ${data.position}`);
  },
  "node.started": (timeline, { ts, data }) =>
    open(close(timeline, inPhase("queue"), ts), "node", data.node, data.node, ts),
  "node.finished": (timeline, { ts, data }) =>
    close(timeline, named("node", data.node), ts, STATUS[data.status] ?? "ok", data.status === "completed" ? "" : data.status, data.ms),
  "turn.started": (timeline, { ts, data }) =>
    open(close(timeline, inPhase("queue"), ts), "first_token", String(data.turn), "First token", ts, data.model),
  "thinking.delta": (timeline, record) => speak(timeline, "thinking", record),
  "text.delta": (timeline, record) => speak(timeline, "decode", record),
  "tool_call.started": (timeline, { ts, data }) =>
    open(close(timeline, inPhase("first_token", "thinking", "decode"), ts), "decode", data.call_id, `Writing ${data.name}()`, ts),
  "tool_call.ended": (timeline, { ts, data }) => {
    const writing = timeline.spans.find(named("decode", data.call_id));
    const label = writing ? writing.label.slice("Writing ".length) : "tool";
    return open(close(timeline, named("decode", data.call_id), ts), "tool", data.call_id, label, ts);
  },
  "tool.result": (timeline, { ts, data }) =>
    close(timeline, named("tool", data.call_id), ts, data.error ? "failed" : "ok", data.source === "ran" ? "" : (data.source ?? ""), data.ms),
  "turn.finished": (timeline, { ts, data }) =>
    close(timeline, inPhase("first_token", "thinking", "decode"), ts, data.finish_reason === "error" ? "failed" : "ok"),
  "cache.hit": (timeline, { ts, data }) =>
    close(open(timeline, "cache", data.layer, `${data.layer} cache`, ts), named("cache", data.layer), ts),
  "input.requested": (timeline, { ts, data }) => open(timeline, "wait", data.input_id, "Waits for you", ts),
  "input.received": (timeline, { ts, data }) => close(timeline, named("wait", data.input_id), ts),
  "run.finished": (timeline, { ts, data }) => end(timeline, ts, data.status === "cancelled" ? "skipped" : "ok"),
  "run.error": (timeline, { ts }) => end(timeline, ts, "failed"),
};
