/**
 * Headrace's client for TypeScript. No DOM, no dependency: it needs `fetch`, `TextDecoder` and `AbortController`, so it
 * runs in browsers, Node 18+, Deno and Bun.
 *
 *     import { Client, newKey } from "./core";
 *
 *     const client = new Client({ baseUrl: "https://headrace.example/" });
 *     const follower = client.start({ input: "What is a run?" }, newKey(), {
 *       onRecord: (record, state) => render(state),
 *       onSnapshot: (state) => render(state),
 *       onLink: (link) => showBanner(link === "down"),
 *     });
 *     const state = await follower.run();          // ended, whatever the network did meanwhile
 *
 * What it promises, however often the connection is reset, black-holed or slept through:
 *
 * - every record reaches `onRecord` once, in order of its seq, or is covered by one `onSnapshot`;
 * - a POST is never a second run (Idempotency-Key), a cut is never mistaken for an end (only a terminal record ends);
 * - a half-open link is noticed after 2.5 of the server's heartbeat intervals, and at once by `wake()`;
 * - reconnects back off with jitter and obey `Retry-After` and `retry:`;
 * - closing the follower does not touch the run: that is what `cancel` is for.
 */
export { Client, newKey, type ClientOptions } from "./client";
export { Follower, recordOf, type Link, type Listener, type Open } from "./follower";
export { answerOf, backoff, DEFAULT_HEARTBEAT_S, PATIENCE, silenceLimit, Watchdog } from "./link";
export { Problem, problemOf } from "./problem";
export { SseParser, type Frame } from "./sse";
export { hydrate, initial } from "./defaults";
export { apply, fold, isEnded, isTerminal, textOf } from "./state";
export * from "./timeline";
export type * from "./types";
