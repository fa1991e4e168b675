/** What travels: the wire's own names, as in PROTOCOL.md. Times are Unix milliseconds, durations milliseconds. */

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json | undefined };

export type Status = "queued" | "running" | "waiting" | "completed" | "cancelled" | "stopped_early" | "failed";

export interface ToolRequest {
  readonly call_id: string;
  readonly name: string;
  readonly arguments: string;
}

export interface Message {
  readonly role: "system" | "user" | "assistant" | "tool";
  readonly content: string;
  readonly tool_calls?: readonly ToolRequest[];
  readonly call_id?: string;
}

export interface Usage {
  readonly input_tokens: number;
  readonly output_tokens: number;
  readonly cached_tokens: number;
  readonly reasoning_tokens: number;
}

export interface Timing {
  readonly queued_ms: number;
  readonly first_token_ms: number | null;
  readonly total_ms: number;
}

export interface Fault {
  readonly code: string;
  readonly message: string;
  readonly hint?: string | null;
}

export interface Turn {
  readonly turn: number;
  readonly model: string;
  readonly engine: string;
  readonly started_seq: number;
  readonly text: string;
  readonly thinking: string;
  readonly text_deltas: number;
  readonly thinking_deltas: number;
  readonly retracted: number;
  readonly finish_reason: string | null;
  readonly usage: Usage;
  readonly timing: Timing;
}

export interface ToolCall {
  readonly call_id: string;
  readonly name: string;
  readonly turn: number;
  readonly arguments: Json;
  readonly started_ts: number;
  readonly progress: Json;
  readonly done: boolean;
  readonly result: Json;
  readonly error: Fault | null;
  readonly ms: number;
  readonly source: string;
}

export interface Node {
  readonly node: string;
  readonly needs: readonly string[];
  readonly started_ts: number;
  readonly status: string;
  readonly ms: number;
  readonly result: Json;
  readonly error: Fault | null;
}

export interface Source {
  readonly id: string;
  readonly title: string;
  readonly url?: string | null;
  readonly path?: string | null;
  readonly span?: readonly [number, number] | null;
  readonly score?: number | null;
  readonly text?: string | null;
}

export interface Route {
  readonly model: string;
  readonly why: string;
  readonly fallback_of?: string | null;
}

export interface CacheHit {
  readonly layer: string;
  readonly score?: number | null;
  readonly age_s?: number;
}

export interface Input {
  readonly input_id: string;
  readonly kind: string;
  readonly prompt: string;
  readonly schema: { readonly [key: string]: Json | undefined };
  readonly call_id: string | null;
  readonly arguments_hash: string | null;
  readonly received: boolean;
  readonly value: Json;
}

export interface Steer {
  readonly steer_id: string;
  readonly text: string;
  readonly mode: string;
  readonly status: string;
  readonly turn: number | null;
  readonly reason: string | null;
}

export interface RunError extends Fault {
  readonly retryable?: boolean;
}

export interface RunState {
  readonly run_id: string;
  readonly seq: number;
  readonly status: Status;
  readonly agent: string;
  readonly thread_id: string;
  readonly input: readonly Message[];
  readonly model: string | null;
  readonly created_ts: number;
  readonly ended_ts: number | null;
  readonly queue_position: number | null;
  readonly turns: readonly Turn[];
  readonly tool_calls: readonly ToolCall[];
  readonly nodes: readonly Node[];
  readonly sources: readonly Source[];
  readonly routes: readonly Route[];
  readonly cache_hits: readonly CacheHit[];
  readonly inputs: readonly Input[];
  readonly steers: readonly Steer[];
  readonly recoveries: number;
  readonly cancel_requested: boolean;
  readonly output: string;
  readonly finish_reason: string | null;
  readonly usage: Usage;
  readonly timing: Timing;
  readonly error: RunError | null;
}

/** A record as a follower sees it. `n` says how many records a merged frame stands for; `seq` is the last of them. */
export interface RunRecord {
  readonly seq: number;
  readonly ts: number;
  readonly type: string;
  readonly n: number;
  readonly data: { readonly [key: string]: any };
}

export interface ThreadSummary {
  readonly thread_id: string;
  readonly title?: string;
  readonly updated_ts?: number;
  readonly active_run?: string | null;
}

export interface RunSummary {
  readonly run_id: string;
  readonly status?: Status;
}

export interface AgentSummary {
  readonly name: string;
  readonly description?: string;
}

export interface StartRequest {
  readonly agent?: string;
  readonly input?: string;
  readonly messages?: readonly Message[];
  readonly thread_id?: string;
}
