/**
 * The reducer: what a run is, as a pure function of its records. The same function as `headrace/state/reducer.py`, so that
 * a snapshot plus later records equals a full replay, whichever side folded which part.
 *
 * It never looks at a clock, keeps the identity of everything a record did not change (a view may compare by
 * reference), ignores what it has already seen and record types it does not know.
 */
import { NEW_CALL, NEW_INPUT, NEW_NODE, NEW_STEER, NEW_TURN, NO_TIMING, NO_USAGE } from "./defaults";
import type { RunRecord, RunState, Status, Steer, ToolCall, Turn, Usage } from "./types";

const ENDED: ReadonlySet<Status> = new Set<Status>(["completed", "cancelled", "stopped_early", "failed"]);
const TERMINAL: ReadonlySet<string> = new Set(["run.finished", "run.error"]);

export const isEnded = (state: RunState): boolean => ENDED.has(state.status);
export const isTerminal = (record: RunRecord): boolean => TERMINAL.has(record.type);

/** Everything said and not retracted, over all turns; the output where an agent spoke without turns. */
export const textOf = (state: RunState): string => state.turns.map((turn) => turn.text).join("") || state.output;

/** The state after `record`. A record at or before `state.seq` changes nothing. */
export function apply(state: RunState, record: RunRecord): RunState {
  if (record.seq <= state.seq) return state;
  const change = CHANGES[record.type];
  return { ...state, ...(change ? change(state, record) : {}), seq: record.seq };
}

export function fold(records: Iterable<RunRecord>, state: RunState): RunState {
  for (const record of records) state = apply(state, record);
  return state;
}

type Changes = Partial<RunState>;

/** The turns, with an implicit one (0) for agents that speak without asking an engine. */
function turnsOf(state: RunState, seq: number): readonly Turn[] {
  return state.turns.length > 0 ? state.turns : [{ ...NEW_TURN, started_seq: seq }];
}

/** `started_seq` of an implicit turn is the first seq after the state, also when a merged frame brings it. */
function changeLastTurn(state: RunState, change: (turn: Turn) => Partial<Turn>): Changes {
  const turns = turnsOf(state, state.seq + 1);
  const last = turns[turns.length - 1]!;
  return { turns: [...turns.slice(0, -1), { ...last, ...change(last) }] };
}

function changeTurn(state: RunState, number: number, change: (turn: Turn) => Partial<Turn>): readonly Turn[] {
  return turnsOf(state, state.seq + 1).map((turn) => (turn.turn === number ? { ...turn, ...change(turn) } : turn));
}

function changeCall(state: RunState, id: string, changes: Partial<ToolCall>): Changes {
  return { tool_calls: state.tool_calls.map((call) => (call.call_id === id ? { ...call, ...changes } : call)) };
}

function changeSteer(state: RunState, id: string, changes: Partial<Steer>): Changes {
  return { steers: state.steers.map((steer) => (steer.steer_id === id ? { ...steer, ...changes } : steer)) };
}

function addUsage(left: Usage, right: Partial<Usage> | undefined): Usage {
  const sum = (field: keyof Usage) => left[field] + (right?.[field] ?? 0);
  return {
    input_tokens: sum("input_tokens"),
    output_tokens: sum("output_tokens"),
    cached_tokens: sum("cached_tokens"),
    reasoning_tokens: sum("reasoning_tokens"),
  };
}

const CHANGES: { readonly [type: string]: (state: RunState, record: RunRecord) => Changes } = {
  "run.started": (_state, { data, ts }) => ({
    agent: data.agent,
    thread_id: data.thread_id,
    input: data.input.map((message: object) => ({ content: "", ...message })),
    model: data.model ?? null,
    created_ts: ts,
    status: "running",
  }),
  "run.queued": (_state, { data }) =>
    data.position > 0 ? { status: "queued", queue_position: data.position } : { status: "running", queue_position: null },
  "run.recovered": (state) => ({ recoveries: state.recoveries + 1 }),
  "turn.started": (state, { data }) => ({
    turns: [
      ...state.turns.filter((turn) => turn.turn !== data.turn),
      { ...NEW_TURN, turn: data.turn, model: data.model, engine: data.engine, started_seq: state.seq + 1 },
    ],
    status: "running",
    queue_position: null,
  }),
  "turn.finished": (state, { data }) => ({
    turns: changeTurn(state, data.turn, () => ({
      finish_reason: data.finish_reason,
      usage: { ...NO_USAGE, ...data.usage },
      timing: { ...NO_TIMING, ...data.timing },
    })),
    usage: addUsage(state.usage, data.usage),
  }),
  "thinking.delta": (state, { data, n }) =>
    changeLastTurn(state, (turn) => ({
      thinking: turn.thinking + data.text,
      thinking_deltas: turn.thinking_deltas + n,
    })),
  "text.delta": (state, { data, n }) =>
    changeLastTurn(state, (turn) => ({ text: turn.text + data.text, text_deltas: turn.text_deltas + n })),
  "text.retracted": (state, { data }) => ({
    turns: changeTurn(state, data.turn, (turn) => ({ text: "", thinking: "", retracted: turn.retracted + 1 })),
  }),
  "tool_call.started": (state, { data, ts }) => ({
    tool_calls: [
      ...state.tool_calls.filter((call) => call.call_id !== data.call_id),
      { ...NEW_CALL, call_id: data.call_id, name: data.name, turn: data.turn, started_ts: ts },
    ],
  }),
  "tool_call.ended": (state, { data }) => changeCall(state, data.call_id, { arguments: data.arguments }),
  "tool.progress": (state, { data }) => changeCall(state, data.call_id, { progress: data.data ?? null }),
  "tool.result": (state, { data }) =>
    changeCall(state, data.call_id, {
      done: true,
      result: data.result ?? null,
      error: data.error ?? null,
      ms: data.ms ?? 0,
      source: data.source ?? "ran",
      progress: null,
    }),
  "node.started": (state, { data, ts }) => ({
    nodes: [
      ...state.nodes.filter((node) => node.node !== data.node),
      { ...NEW_NODE, node: data.node, needs: data.needs ?? [], started_ts: ts },
    ],
  }),
  "node.finished": (state, { data }) => ({
    nodes: state.nodes.map((node) =>
      node.node === data.node
        ? {
            ...node,
            status: data.status,
            ms: data.ms ?? 0,
            result: data.result ?? null,
            error: data.error ?? null,
          }
        : node,
    ),
  }),
  "source.cited": (state, { data }) => ({ sources: [...state.sources, withoutTs(data)] }),
  "route.chosen": (state, { data }) => ({ routes: [...state.routes, withoutTs(data)] }),
  "cache.hit": (state, { data }) => ({ cache_hits: [...state.cache_hits, withoutTs(data)] }),
  "input.requested": (state, { data }) => ({
    inputs: [...state.inputs, { ...NEW_INPUT, ...withoutTs(data) }],
    status: "waiting",
  }),
  "input.received": (state, { data }) => {
    const inputs = state.inputs.map((input) =>
      input.input_id === data.input_id ? { ...input, received: true, value: data.value ?? null } : input,
    );
    return { inputs, status: inputs.some((input) => !input.received) ? "waiting" : "running" };
  },
  "cancel.requested": () => ({ cancel_requested: true }),
  "steer.received": (state, { data }) => ({
    steers: [
      ...state.steers,
      { ...NEW_STEER, steer_id: data.steer_id, text: data.text, mode: data.mode ?? "next_turn" },
    ],
  }),
  "steer.applied": (state, { data }) => {
    const last = state.turns[state.turns.length - 1];
    return changeSteer(state, data.steer_id, { status: "applied", turn: last ? last.turn + 1 : 1 });
  },
  "steer.returned": (state, { data }) =>
    changeSteer(state, data.steer_id, { status: "returned", reason: data.reason }),
  "run.finished": (_state, { data, ts }) => ({
    status: data.status,
    output: data.output ?? "",
    finish_reason: data.finish_reason ?? "stop",
    usage: { ...NO_USAGE, ...data.usage },
    timing: { ...NO_TIMING, ...data.timing },
    ended_ts: ts,
    queue_position: null,
  }),
  "run.error": (_state, { data, ts }) => ({
    status: "failed",
    error: { code: data.code, message: data.message, retryable: data.retryable ?? false, hint: data.hint ?? null },
    ended_ts: ts,
    queue_position: null,
  }),
};

/** A record's data without its stamp (and without a merged frame's count), as a snapshot holds it. */
function withoutTs(data: { readonly [key: string]: any }): any {
  const { ts: _ts, n: _n, ...fields } = data;
  return fields;
}
