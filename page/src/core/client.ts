/** The HTTP side of the protocol: one method per route. Every failure that the server explained is a Problem. */
import { Follower, type Listener } from "./follower";
import { problemOf } from "./problem";
import { hydrate, initial } from "./defaults";
import type {
  AgentSummary,
  Json,
  RunRecord,
  RunState,
  RunSummary,
  StartRequest,
  ThreadSummary,
} from "./types";

export interface ClientOptions {
  /** Where `v1/` is. */
  readonly baseUrl: string;
  /** Sent with every request, e.g. Authorization. */
  readonly headers?: Readonly<Record<string, string>>;
  readonly fetch?: typeof fetch;
}

/** An answer that takes longer than this is not coming: the connection it was asked on may be dead. */
const ANSWER_WITHIN_MS = 3_000;

export class Client {
  private readonly fetch: typeof fetch;

  constructor(private readonly options: ClientOptions) {
    this.fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /**
   * Starts a run and follows it on the connection of the POST itself, so that the first token needs one round trip.
   * `key` makes the request repeatable: cut before the headers came, it is sent again and finds the same run.
   */
  start(request: StartRequest, key: string, listener: Listener): Follower {
    return new Follower((runId, seq, signal) => {
      if (runId !== null) return this.openEvents(runId, seq, signal);
      return this.request("v1/runs", {
        method: "POST",
        body: JSON.stringify(request),
        headers: { Accept: "text/event-stream", "Content-Type": "application/json", "Idempotency-Key": key },
        signal,
      });
    }, listener);
  }

  /** Follows a run from `state`, or from its first record. */
  follow(runId: string, listener: Listener, state: RunState = initial(runId)): Follower {
    return new Follower((_runId, seq, signal) => this.openEvents(runId, seq, signal), listener, state);
  }

  /** A run's records from its first, across reconnects. Leaving the loop stops following, not the run. */
  async *records(runId: string): AsyncGenerator<RunRecord, void, void> {
    const waiting: RunRecord[] = [];
    let wake = () => {};
    const follower = this.follow(runId, {
      onRecord: (record) => {
        waiting.push(record);
        wake();
      },
    });
    let over = false;
    const done = follower.run().finally(() => {
      over = true;
      wake();
    });
    try {
      for (;;) {
        while (waiting.length > 0) yield waiting.shift()!;
        if (over) break;
        await new Promise<void>((resolve) => (wake = resolve));
      }
      await done;
    } finally {
      follower.close();
    }
  }

  async run(runId: string): Promise<RunState> {
    return stateOf(runId, await this.json("GET", `v1/runs/${id(runId)}`));
  }

  /** Asks the run to stop. The answer is its state now; the terminal record follows in its stream. */
  async cancel(runId: string): Promise<RunState> {
    return stateOf(runId, await this.json("POST", `v1/runs/${id(runId)}/cancel`, {}));
  }

  async steer(runId: string, text: string, mode: "interrupt" | "next_turn"): Promise<void> {
    await this.json("POST", `v1/runs/${id(runId)}/steer`, { text, mode });
  }

  async answer(runId: string, inputId: string, value: Json): Promise<void> {
    await this.json("POST", `v1/runs/${id(runId)}/inputs/${id(inputId)}`, { value });
  }

  async threadRuns(threadId: string): Promise<readonly RunSummary[]> {
    return (await this.json("GET", `v1/threads/${id(threadId)}`)).runs ?? [];
  }

  async threads(): Promise<readonly ThreadSummary[]> {
    return (await this.json("GET", "v1/threads")).threads ?? [];
  }

  async agents(): Promise<readonly AgentSummary[]> {
    return (await this.json("GET", "v1/agents")).agents ?? [];
  }

  private openEvents(runId: string, seq: number, signal: AbortSignal): Promise<Response> {
    const cursor: Record<string, string> = seq > 0 ? { "Last-Event-ID": String(seq) } : {};
    const headers = { Accept: "text/event-stream", ...cursor };
    return this.request(`v1/runs/${id(runId)}/events`, { headers, signal });
  }

  private async json(method: string, path: string, body?: object): Promise<any> {
    const response = await this.request(path, {
      method,
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
      headers: body ? { "Content-Type": "application/json" } : {},
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    if (!response.ok) throw await problemOf(response);
    return response.status === 204 ? {} : response.json();
  }

  private request(path: string, init: RequestInit): Promise<Response> {
    const url = new URL(path, this.options.baseUrl);
    const headers = { ...this.options.headers, ...(init.headers as Record<string, string>) };
    return this.fetch(url, { cache: "no-store", ...init, headers });
  }
}

const id = encodeURIComponent;

const stateOf = (runId: string, sent: { state: object; as_of_seq: number }): RunState => ({
  ...hydrate(runId, sent.state),
  seq: sent.as_of_seq,
});

/** A key for one request that may be sent twice. (randomUUID exists only on secure origins; http://host is not one.) */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
