/**
 * Follows one run until its terminal record, over as many connections as that takes.
 *
 * The cursor is the seq of the state; a connection is only a way to get from there to the end. A connection that
 * closes without the terminal record was cut. What counts as lost: any error of fetch or of the reader (never judged
 * by its text: browsers word it differently), silence longer than the server's heartbeat allows, and 408, 425, 429
 * and 5xx. Any other 4xx is an answer, and ends the follower with a Problem.
 */
import { answerOf, backoff, silenceLimit, Watchdog } from "./link";
import { problemOf } from "./problem";
import { SseParser, type Frame } from "./sse";
import { apply, isEnded } from "./state";
import { hydrate, initial } from "./defaults";
import type { RunRecord, RunState } from "./types";

export type Link = "connecting" | "live" | "down" | "closed";

export interface Listener {
  /** A record that is new to the state. */
  onRecord?(record: RunRecord, state: RunState): void;
  /** The state jumped over records that are no longer kept. */
  onSnapshot?(state: RunState): void;
  onLink?(link: Link): void;
  /** The run this stream belongs to, as soon as a response names it. */
  onRun?(runId: string): void;
}

/** Opens a connection after `seq`. `runId` is null until a response named it. */
export type Open = (runId: string | null, seq: number, signal: AbortSignal) => Promise<Response>;

type Outcome = { readonly retryAfter: string | null };
const CUT: Outcome = { retryAfter: null };

export class Follower {
  state: RunState;
  link: Link = "connecting";

  private runId: string | null;
  private attempt = 0;
  private retryFloor = 250;
  /** As the server last said it: an attempt to reconnect may hang just as a stream may. */
  private silenceMs = silenceLimit(null);
  private closed = false;
  private connection: AbortController | null = null;
  private watchdog: Watchdog | null = null;
  private hurry: (() => void) | null = null;

  constructor(
    private readonly open: Open,
    private readonly listener: Listener,
    state: RunState | null = null,
  ) {
    this.runId = state?.run_id ?? null;
    this.state = state ?? initial("");
  }

  /** Resolves with the last state when the run has ended or `close` was called. Raises Problem when refused. */
  async run(): Promise<RunState> {
    try {
      while (!this.closed && !isEnded(this.state)) {
        const outcome = await this.connect();
        if (this.closed || isEnded(this.state) || outcome === "nothing_left") break;
        this.setLink("down");
        await this.pause(backoff(++this.attempt, Math.random(), this.retryFloor, outcome.retryAfter));
      }
    } finally {
      this.setLink("closed");
    }
    return this.state;
  }

  /** Stops following. The run goes on. */
  close(): void {
    this.closed = true;
    this.connection?.abort();
    this.hurry?.();
  }

  /** The world may have changed (network back, laptop open, tab in front): do not wait for a timer to notice. */
  wake(): void {
    this.watchdog?.look();
    this.hurry?.();
  }

  /** Takes over a newer state that came another way (an answer to GET /v1/runs/{id}). */
  adopt(state: RunState): void {
    if (state.seq <= this.state.seq) return;
    this.state = state;
    this.listener.onSnapshot?.(state);
    if (isEnded(state)) this.close();
  }

  private async connect(): Promise<Outcome | "nothing_left"> {
    const connection = new AbortController();
    this.connection = connection;
    const watchdog = new Watchdog(this.silenceMs, () => connection.abort());
    this.watchdog = watchdog;
    if (this.link !== "down") this.setLink("connecting");
    try {
      const response = await this.open(this.runId, this.state.seq, connection.signal).catch(() => null);
      if (response === null) return CUT;
      if (response.ok) this.silenceMs = silenceLimit(response.headers.get("X-Heartbeat-Interval"));
      watchdog.allow(this.silenceMs);
      const answer = answerOf(response.status);
      if (answer === "refused") throw await problemOf(response);
      if (answer === "retry") return { retryAfter: response.headers.get("Retry-After") };
      this.named(response.headers.get("X-Run-Id"));
      if (answer === "nothing_left") return answer;
      await this.read(response, watchdog);
      return CUT;
    } finally {
      watchdog.stop();
      connection.abort();
      this.connection = this.watchdog = null;
    }
  }

  private async read(response: Response, watchdog: Watchdog): Promise<void> {
    const reader = response.body!.getReader();
    const parser = new SseParser();
    this.setLink("live");
    while (!this.closed && !isEnded(this.state)) {
      const chunk = await reader.read().catch(() => null);
      if (chunk === null || chunk.done) return;
      watchdog.heard();
      for (const frame of parser.feed(chunk.value)) this.take(frame);
      if (parser.retryMs !== null) this.retryFloor = Math.max(50, parser.retryMs);
    }
  }

  private take(frame: Frame): void {
    if (this.closed) return;
    this.attempt = 0;
    if (frame.event === "run.snapshot") return this.jump(JSON.parse(frame.data));
    const record = recordOf(frame);
    if (record === null || record.seq <= this.state.seq) return;
    this.state = apply(this.state, record);
    this.listener.onRecord?.(record, this.state);
  }

  private jump(data: { as_of_seq: number; state: object }): void {
    if (data.as_of_seq <= this.state.seq) return;
    this.state = { ...hydrate(this.state.run_id, data.state), seq: data.as_of_seq };
    this.listener.onSnapshot?.(this.state);
  }

  private named(runId: string | null): void {
    if (runId === null || runId === this.runId) return;
    this.runId = runId;
    this.state = { ...this.state, run_id: runId };
    this.listener.onRun?.(runId);
  }

  private setLink(link: Link): void {
    if (link === this.link) return;
    this.link = link;
    this.listener.onLink?.(link);
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.hurry = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** The record in `frame`, or null for a frame without a seq (an event this version does not know). */
export function recordOf(frame: Frame): RunRecord | null {
  const seq = Number(frame.id);
  if (frame.id === null || !Number.isInteger(seq) || seq < 1) return null;
  const data = JSON.parse(frame.data);
  return { seq, ts: data.ts ?? 0, type: frame.event, n: data.n ?? 1, data };
}
