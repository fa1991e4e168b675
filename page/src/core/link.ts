/**
 * What a follower decides about its connection, as plain functions and one timer.
 *
 * A link is watched by bytes, not by messages: heartbeats are comments, which carry no message. The server says in
 * `X-Heartbeat-Interval` (seconds) how long it may be silent; two and a half times that and the link is half open.
 */

export const DEFAULT_HEARTBEAT_S = 15;
export const PATIENCE = 2.5;

/** Milliseconds of silence after which a link is given up. */
export function silenceLimit(header: string | null): number {
  const seconds = Number(header);
  return (seconds > 0 ? seconds : DEFAULT_HEARTBEAT_S) * PATIENCE * 1000;
}

/**
 * Milliseconds before attempt `attempt` (from 1): doubling from `floor` to 10 s, with full jitter above half, so that
 * a thousand pages cut by one restart do not come back in the same instant. `retryAfter` (seconds) is obeyed.
 */
export function backoff(attempt: number, random: number, floor = 250, retryAfter: string | null = null): number {
  const asked = Number(retryAfter) * 1000 || 0;
  const ceiling = Math.min(10_000, floor * 2 ** Math.min(attempt - 1, 10));
  return Math.max(asked, ceiling / 2 + (ceiling / 2) * random);
}

export type Answer = "stream" | "nothing_left" | "retry" | "refused";

/** What a response's status means to a follower. */
export function answerOf(status: number): Answer {
  if (status === 204) return "nothing_left";
  if (status >= 200 && status < 300) return "stream";
  return status === 408 || status === 425 || status === 429 || status >= 500 ? "retry" : "refused";
}

/** Calls `onSilence` once, when nobody has called `heard` for `limitMs`. One timer, however often bytes come. */
export class Watchdog {
  private heardAt = Date.now();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private limitMs: number,
    private readonly onSilence: () => void,
  ) {
    this.arm(limitMs);
  }

  heard(): void {
    this.heardAt = Date.now();
  }

  /** A new limit, from now on. */
  allow(limitMs: number): void {
    this.limitMs = limitMs;
    this.heard();
    clearTimeout(this.timer);
    this.arm(limitMs);
  }

  /** Looks at once and with less patience: after a sleep the timer is late and the link most likely dead. */
  look(): void {
    const silent = Date.now() - this.heardAt;
    if (silent < (this.limitMs / PATIENCE) * 1.2) return;
    this.stop();
    this.onSilence();
  }

  stop(): void {
    clearTimeout(this.timer);
  }

  private arm(afterMs: number): void {
    this.timer = setTimeout(() => {
      const left = this.heardAt + this.limitMs - Date.now();
      if (left > 0) this.arm(left);
      else this.onSilence();
    }, afterMs);
  }
}
