/**
 * One conversation: its runs in order, from wherever they were started.
 *
 * The page names the thread itself, so its URL holds before the server has answered; a question that was sent but not
 * yet acknowledged is remembered with its key, and after a reload the same request finds the same run.
 */
import { computed, signal } from "@preact/signals";
import { type Client, isEnded, type Message, newKey, Problem, type RunSummary, type StartRequest, textOf } from "../core";
import { recall, remember } from "./memory";
import { RunView } from "./run";

interface Pending {
  readonly key: string;
  readonly request: StartRequest;
}

const ENDED = ["completed", "cancelled", "stopped_early", "failed"];

export class ThreadView {
  readonly runs = signal<readonly RunView[]>([]);
  readonly loading = signal(false);
  readonly problem = signal<Problem | null>(null);
  readonly active = computed(() => this.runs.value.findLast((run) => !isEnded(run.state.value) && run.problem.value === null) ?? null);

  constructor(
    readonly id: string,
    private readonly client: Client,
    private readonly onChange: (runId: string) => void,
  ) {}

  /** Fetches the thread's runs and shows those that are not shown yet. Absent threads are empty ones. */
  async load(): Promise<void> {
    this.loading.value = this.runs.value.length === 0;
    try {
      await this.refresh();
      this.repeatPending();
    } catch (error) {
      this.problem.value = error instanceof Problem ? error : new Problem(0, "unreachable", "The server cannot be reached.", null);
    } finally {
      this.loading.value = false;
    }
  }

  async refresh(): Promise<void> {
    const listed = await this.client.threadRuns(this.id).catch((error: unknown) => {
      if (error instanceof Problem && error.status === 404) return [];
      throw error;
    });
    this.problem.value = null;
    for (const summary of listed) this.notice(summary);
  }

  /** A run of this thread exists: show it, unless it is shown. */
  notice({ run_id, status }: RunSummary): void {
    if (this.runs.value.some((run) => run.id === run_id)) return;
    const unnamed = this.runs.value.some((run) => run.id === "");
    if (unnamed) return; // Our own, most likely: its headers are on the way. The next look will tell.
    const view = this.view();
    void view.open(run_id, status !== undefined && ENDED.includes(status));
    // Run ids sort by time.
    this.runs.value = [...this.runs.value, view].sort((a, b) => (a.id < b.id ? -1 : 1));
  }

  ask(text: string, agent: string | null): RunView {
    return this.start({ input: text, thread_id: this.id, ...(agent ? { agent } : {}) }, newKey());
  }

  /** Begins with an earlier conversation, as a branch of another thread does. */
  askAfter(earlier: readonly Message[], text: string, agent: string | null): RunView {
    if (earlier.length === 0) return this.ask(text, agent);
    const messages = [...earlier, { role: "user" as const, content: text }];
    return this.start({ messages, thread_id: this.id, ...(agent ? { agent } : {}) }, newKey());
  }

  /** What was said before `run`, as its reader saw it. */
  before(run: RunView): Message[] {
    const earlier = this.runs.value.slice(0, this.runs.value.indexOf(run));
    const said = earlier.flatMap((each) => [...saidIn(each), { role: "assistant" as const, content: textOf(each.state.value) }]);
    return [...said, ...saidIn(run).slice(0, -1)].filter((message) => message.content !== "");
  }

  leave(): void {
    for (const run of this.runs.value) if (run.running) run.leave();
  }

  comeBack(awayMs: number): void {
    for (const run of this.runs.value) run.comeBack(awayMs);
    void this.refresh().catch(() => {});
  }

  close(): void {
    for (const run of this.runs.value) run.close();
  }

  private start(request: StartRequest, key: string): RunView {
    remember("session", `pending.${this.id}`, { key, request } satisfies Pending);
    const view = this.view();
    view.start(request, key);
    this.runs.value = [...this.runs.value, view];
    return view;
  }

  private view(): RunView {
    return new RunView(this.client, {
      onNamed: (run) => {
        remember("session", `pending.${this.id}`, null);
        this.onChange(run.id);
      },
      onEnded: (run) => this.onChange(run.id),
      onWithdrawn: () => remember("session", `pending.${this.id}`, null),
    });
  }

  private repeatPending(): void {
    const pending = recall<Pending>("session", `pending.${this.id}`);
    if (pending && !this.active.value) this.start(pending.request, pending.key);
  }
}

const saidIn = (run: RunView): Message[] =>
  run.state.value.input.filter((message) => message.role === "user" || message.role === "assistant").map(({ role, content }) => ({ role, content }));
