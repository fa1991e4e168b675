/** One run that holds every record type, for tests of the reducer, the timeline and the follower. */
import type { RunRecord } from "../src/core";

const EVENTS: [string, object][] = [
  ["run.started", { agent: "docs", thread_id: "t1", input: [{ role: "user", content: "What is a run?" }] }],
  ["run.queued", { position: 2 }],
  ["run.queued", { position: 1 }],
  ["node.started", { node: "intent" }],
  ["node.started", { node: "retrieve", needs: [] }],
  ["node.finished", { node: "intent", status: "completed", ms: 3 }],
  ["cache.hit", { layer: "semantic", score: 0.97, age_s: 12 }],
  ["node.finished", { node: "retrieve", status: "fallback", ms: 40, error: { code: "deadline_exceeded", message: "late" } }],
  ["source.cited", { id: "s1", title: "PROTOCOL", path: "PROTOCOL.md", span: [0, 40], score: 0.8, text: "A record is…" }],
  ["route.chosen", { model: "m", why: "default" }],
  ["turn.started", { turn: 1, model: "m", engine: "scripted" }],
  ["thinking.delta", { text: "Let me " }],
  ["thinking.delta", { text: "look." }],
  ["text.delta", { text: "It broke" }],
  ["text.retracted", { turn: 1, reason: "the engine died" }],
  ["text.delta", { text: "A run is " }],
  ["text.delta", { text: "a sequence 🚰 " }],
  ["tool_call.started", { call_id: "c1", name: "clock", turn: 1 }],
  ["args.delta", { call_id: "c1", delta: "{}" }],
  ["tool_call.ended", { call_id: "c1", arguments: {} }],
  ["tool_call.started", { call_id: "c2", name: "search", turn: 1 }],
  ["tool_call.ended", { call_id: "c2", arguments: { query: "run" } }],
  ["turn.finished", { turn: 1, finish_reason: "tool_calls", usage: { input_tokens: 90, output_tokens: 12 }, timing: { first_token_ms: 80, total_ms: 200 } }],
  ["input.requested", { input_id: "i1", kind: "approval", prompt: "Search?", call_id: "c2", arguments_hash: "h" }],
  ["input.received", { input_id: "i1", value: { approved: true } }],
  ["tool.progress", { call_id: "c2", data: { percent: 50 } }],
  ["tool.result", { call_id: "c1", result: "12:00", ms: 1 }],
  ["tool.result", { call_id: "c2", error: { code: "tool_failed", message: "no index", hint: "build it" }, ms: 30 }],
  ["steer.received", { steer_id: "x1", text: "shorter", mode: "interrupt" }],
  ["steer.applied", { steer_id: "x1", seq: 29 }],
  ["turn.started", { turn: 2, model: "m", engine: "scripted" }],
  ["text.delta", { text: "of records" }],
  ["text.delta", { text: " in a log." }],
  ["steer.received", { steer_id: "x2", text: "and now?" }],
  ["run.recovered", { worker: "w2", after_seq: 34 }],
  ["turn.finished", { turn: 2, finish_reason: "stop", usage: { output_tokens: 7 } }],
  ["steer.returned", { steer_id: "x2", reason: "the run had ended" }],
  ["cancel.requested", { by: "client" }],
  ["run.finished", { status: "completed", output: "of records in a log.", finish_reason: "stop", usage: { input_tokens: 90, output_tokens: 19 }, timing: { first_token_ms: 80, total_ms: 400 } }],
];

export const RECORDS: readonly RunRecord[] = EVENTS.map(([type, data], index) => {
  const ts = 1_764_424_800_000 + index * 10;
  return { seq: index + 1, ts, type, n: 1, data: { ...data, ts } };
});

export const RUN_ID = "0193-run";

/** A record's frame; with `n`, the frame of a merged delta. */
export function frameOf(record: RunRecord): string {
  const data = record.n > 1 ? { ...record.data, n: record.n } : record.data;
  return `id: ${record.seq}\nevent: ${record.type}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** The records with every chain of neighbouring deltas of one type merged, as a slow reader receives them. */
export function merged(records: readonly RunRecord[]): RunRecord[] {
  const out: RunRecord[] = [];
  for (const record of records) {
    const last = out[out.length - 1];
    const joins = last?.type === record.type && (record.type === "text.delta" || record.type === "thinking.delta");
    if (!joins) out.push(record);
    else {
      const data = { ...record.data, text: last.data.text + record.data.text };
      out[out.length - 1] = { ...record, n: last.n + 1, data };
    }
  }
  return out;
}
