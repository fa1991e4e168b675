/** What a field is when nobody has said anything about it yet; on the wire such fields are absent. */
import type { Input, Node, RunState, Steer, Timing, ToolCall, Turn, Usage } from "./types";

export const NO_USAGE: Usage = { input_tokens: 0, output_tokens: 0, cached_tokens: 0, reasoning_tokens: 0 };
export const NO_TIMING: Timing = { queued_ms: 0, first_token_ms: null, total_ms: 0 };

export function initial(runId: string): RunState {
  return {
    run_id: runId,
    seq: 0,
    status: "queued",
    agent: "",
    thread_id: "",
    input: [],
    model: null,
    created_ts: 0,
    ended_ts: null,
    queue_position: null,
    turns: [],
    tool_calls: [],
    nodes: [],
    sources: [],
    routes: [],
    cache_hits: [],
    inputs: [],
    steers: [],
    recoveries: 0,
    cancel_requested: false,
    output: "",
    finish_reason: null,
    usage: NO_USAGE,
    timing: NO_TIMING,
    error: null,
  };
}

/** A state as the server sends it: fields at their default are absent. */
export function hydrate(runId: string, sent: { readonly [key: string]: any }): RunState {
  return {
    ...initial(runId),
    ...sent,
    run_id: runId,
    usage: { ...NO_USAGE, ...sent.usage },
    timing: { ...NO_TIMING, ...sent.timing },
    input: (sent.input ?? []).map((message: object) => ({ content: "", ...message })),
    turns: (sent.turns ?? []).map(hydrateTurn),
    tool_calls: (sent.tool_calls ?? []).map((call: object) => ({ ...NEW_CALL, ...call })),
    nodes: (sent.nodes ?? []).map((node: object) => ({ ...NEW_NODE, ...node })),
    inputs: (sent.inputs ?? []).map((input: object) => ({ ...NEW_INPUT, ...input })),
    steers: (sent.steers ?? []).map((steer: object) => ({ ...NEW_STEER, ...steer })),
  };
}

function hydrateTurn(sent: { readonly [key: string]: any }): Turn {
  const turn = { ...NEW_TURN, ...sent };
  return { ...turn, usage: { ...NO_USAGE, ...sent.usage }, timing: { ...NO_TIMING, ...sent.timing } };
}

export const NEW_TURN: Turn = {
  turn: 0,
  model: "",
  engine: "",
  started_seq: 0,
  text: "",
  thinking: "",
  text_deltas: 0,
  thinking_deltas: 0,
  retracted: 0,
  finish_reason: null,
  usage: NO_USAGE,
  timing: NO_TIMING,
};
export const NEW_CALL: ToolCall = {
  call_id: "",
  name: "",
  turn: 0,
  arguments: null,
  started_ts: 0,
  progress: null,
  done: false,
  result: null,
  error: null,
  ms: 0,
  source: "ran",
};
export const NEW_NODE: Node = { node: "", needs: [], started_ts: 0, status: "running", ms: 0, result: null, error: null };
export const NEW_INPUT: Input = {
  input_id: "",
  kind: "approval",
  prompt: "",
  schema: {},
  call_id: null,
  arguments_hash: null,
  received: false,
  value: null,
};
export const NEW_STEER: Steer = { steer_id: "", text: "", mode: "", status: "received", turn: null, reason: null };
