/**
 * One run as the page shows it: a follower whose records reach the screen in batches.
 *
 * Records may come a thousand a second; eyes and browsers want about sixteen updates. So records change plain fields
 * at once and signals every FLUSH_MS, the first one immediately.
 */
import { signal } from "@preact/signals";
import {
  backoff,
  type Client,
  delivery,
  emptyTimeline,
  extend,
  type Follower,
  initial,
  isEnded,
  isTerminal,
  type Json,
  type Link,
  type Listener,
  Problem,
  type RunRecord,
  type RunState,
  type StartRequest,
  type Timeline,
} from "../core";
import { recall, remember } from "./memory";

const FLUSH_MS = 60;
/** How long a cancelled run may stay silent before its state is asked for another way. */
const STOP_PATIENCE_MS = 600;
/** A link that was down for longer than this means that somebody missed something. */
const ABSENT_AFTER_MS = 5_000;

const later = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

export interface Hooks {
  /** The run has a name: it can be found again. */
  onNamed?(run: RunView): void;
  onEnded?(run: RunView): void;
  /** It was taken back before any server knew of it. */
  onWithdrawn?(): void;
}

export class RunView {
  readonly state = signal<RunState>(initial(""));
  readonly timeline = signal<Timeline>(emptyTimeline);
  readonly link = signal<Link>("closed");
  readonly problem = signal<Problem | null>(null);
  readonly stopping = signal(false);
  /** When it ended, if nobody was there to see it. */
  readonly endedUnseen = signal<number | null>(null);
  /** What delivery added to the first word, in ms. */
  readonly deliveryMs = signal<number | null>(null);

  private follower: Follower | null = null;
  private next: RunState | null = null;
  private nextTimeline: Timeline = emptyTimeline;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private flushedAt = 0;
  private absent = false;
  private closed = false;
  private downSince: number | null = null;
  private askedAt: number | null = null;
  /** Server clock minus ours, at best: the smallest lag seen. Only used to draw a growing bar. */
  private lag = Infinity;

  constructor(
    private readonly client: Client,
    private readonly hooks: Hooks = {},
  ) {}

  get id(): string {
    return this.state.value.run_id;
  }

  get running(): boolean {
    return !isEnded(this.state.value) && this.problem.value === null;
  }

  /** The server's time now, as well as this page can tell. */
  serverNow(): number {
    return Date.now() - (this.lag === Infinity ? 0 : this.lag);
  }

  start(request: StartRequest, key: string): void {
    this.askedAt = Date.now();
    const asked = request.messages ?? [{ role: "user" as const, content: request.input ?? "" }];
    this.state.value = { ...initial(""), thread_id: request.thread_id ?? "", input: asked };
    this.follow(this.client.start(request, key, this.listener));
  }

  /** Shows a run that was started elsewhere or earlier: from its records while it runs, else from its state. */
  async open(runId: string, ended: boolean): Promise<void> {
    this.state.value = initial(runId);
    this.absent = recall("local", `unseen.${runId}`) !== null;
    if (!ended) return this.follow(this.client.follow(runId, this.listener));
    for (let attempt = 1; !this.closed; attempt++) {
      try {
        this.state.value = await this.client.run(runId);
        return this.judgeAbsence(this.state.value);
      } catch (error) {
        if (error instanceof Problem) return this.fail(error);
        await later(backoff(attempt, Math.random()));
      }
    }
  }

  /** The records of a run that was opened from its state: only they say when each phase was. */
  async loadTimeline(): Promise<void> {
    if (this.timeline.value.origin !== 0 || this.running) return;
    let timeline = emptyTimeline;
    for await (const record of this.client.records(this.id)) timeline = extend(timeline, record);
    this.timeline.value = timeline;
  }

  async stop(): Promise<void> {
    if (!this.running || this.stopping.value) return;
    if (this.id === "" && this.link.value === "down") return this.withdraw();
    this.stopping.value = true;
    if (this.id !== "") await this.cancel();
  }

  private async cancel(): Promise<void> {
    await this.untilHeard(async () => {
      const state = await this.client.cancel(this.id);
      if (isEnded(state)) this.adopt(state);
    });
    setTimeout(() => void this.confirmStop(), STOP_PATIENCE_MS);
  }

  /** The question has not been answered by any server: it is taken back. (If one got it, it shows up at the next look.) */
  private withdraw(): void {
    this.follower?.close();
    this.hooks.onWithdrawn?.();
    this.fail(new Problem(0, "not_sent", "The question was not sent.", null));
  }

  async steer(text: string, mode: "interrupt" | "next_turn"): Promise<void> {
    await this.client.steer(this.id, text, mode);
  }

  async answer(inputId: string, value: Json): Promise<void> {
    await this.client.answer(this.id, inputId, value);
  }

  /** Gives the connection back. */
  leave(): void {
    this.absent = true;
    this.follower?.close();
  }

  /** Looks at the connection, or opens one again. */
  comeBack(awayMs: number): void {
    if (!this.running || this.id === "") return this.follower?.wake();
    if (awayMs > ABSENT_AFTER_MS) this.absent = true;
    if (this.link.value === "closed") this.follow(this.client.follow(this.id, this.listener, this.next ?? this.state.value));
    else this.follower?.wake();
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
    this.follower?.close();
  }

  private readonly listener: Listener = {
    onRun: (runId) => {
      this.state.value = { ...this.state.value, run_id: runId };
      remember("local", `unseen.${runId}`, 1);
      this.hooks.onNamed?.(this);
      if (this.stopping.value) void this.cancel();
    },
    onRecord: (record, state) => this.take(record, state),
    onSnapshot: (state) => this.show(state),
    onLink: (link) => this.linked(link),
  };

  private follow(follower: Follower): void {
    this.follower = follower;
    this.link.value = "connecting";
    if (this.id) remember("local", `unseen.${this.id}`, 1);
    follower.run().catch((error: unknown) => this.fail(error));
  }

  private take(record: RunRecord, state: RunState): void {
    this.lag = Math.min(this.lag, Date.now() - record.ts);
    this.nextTimeline = extend(this.nextTimeline, record);
    if (record.type === "text.delta" && this.deliveryMs.value === null && !this.absent) {
      this.deliveryMs.value = delivery(this.nextTimeline, this.askedAt, Date.now());
    }
    this.show(state, isTerminal(record));
  }

  private show(state: RunState, now = isEnded(state)): void {
    this.next = state;
    const wait = this.flushedAt + FLUSH_MS - Date.now();
    if (now || wait <= 0) this.flush();
    else this.timer ??= setTimeout(() => this.flush(), wait);
  }

  private flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.flushedAt = Date.now();
    if (this.next === null) return;
    this.timeline.value = this.nextTimeline;
    this.state.value = this.next;
    if (!isEnded(this.next)) return;
    this.stopping.value = false;
    this.judgeAbsence(this.next);
    this.hooks.onEnded?.(this);
  }

  /** A run whose end nobody watched says when it was; a hidden page counts as nobody. */
  private judgeAbsence(state: RunState): void {
    if ((this.absent || document.hidden) && state.status !== "cancelled") this.endedUnseen.value = state.ended_ts;
    if (!document.hidden) remember("local", `unseen.${state.run_id}`, null);
  }

  private linked(link: Link): void {
    this.link.value = link;
    if (link === "down") this.downSince ??= Date.now();
    if (link !== "live") return;
    if (this.downSince !== null && Date.now() - this.downSince > ABSENT_AFTER_MS) this.absent = true;
    this.downSince = null;
    // What was missed arrives in the first moments; what comes later is being watched.
    if (this.absent && !document.hidden) setTimeout(() => (this.absent = document.hidden), 1_000);
  }

  /** Says it until the server has heard, or has refused. */
  private async untilHeard(request: () => Promise<void>): Promise<void> {
    for (let attempt = 1; this.running; attempt++) {
      try {
        return await request();
      } catch (error) {
        if (error instanceof Problem && error.status < 500) return;
        await later(Math.min(2_000, 200 * attempt));
      }
    }
  }

  /** The stream may be slow or dead: the end of a cancelled run is then fetched, and is final. */
  private async confirmStop(): Promise<void> {
    if (!this.running) return;
    const state = await this.client.run(this.id).catch(() => null);
    if (state && isEnded(state)) this.adopt(state);
    else setTimeout(() => void this.confirmStop(), STOP_PATIENCE_MS);
  }

  private adopt(state: RunState): void {
    if (this.follower && this.link.value !== "closed") this.follower.adopt(state);
    else this.show(state, true);
  }

  private fail(error: unknown): void {
    this.problem.value = error instanceof Problem ? error : new Problem(0, "page", String(error), null);
    this.stopping.value = false;
    this.hooks.onEnded?.(this);
  }
}
