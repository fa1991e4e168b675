import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Client, fold, initial, Problem, type Link, type RunRecord } from "../src/core";
import { frameOf, merged, RECORDS, RUN_ID } from "./run";
import { seeded } from "./seeded";

const WHOLE = fold(RECORDS, initial(RUN_ID));
const encode = (text: string) => new TextEncoder().encode(text);

interface Connection {
  readonly method: string;
  readonly path: string;
  readonly headers: Headers;
  readonly signal: AbortSignal;
}

type Server = (connection: Connection, attempt: number) => Response | Promise<Response>;

/** A client whose `fetch` is `server`, and the list of connections it opened. */
function clientOf(server: Server): { client: Client; opened: Connection[] } {
  const opened: Connection[] = [];
  const fetch = async (input: URL | RequestInfo, init: RequestInit = {}) => {
    const url = new URL(String(input));
    const connection = { method: init.method ?? "GET", path: url.pathname, headers: new Headers(init.headers), signal: init.signal! };
    opened.push(connection);
    return server(connection, opened.length);
  };
  return { client: new Client({ baseUrl: "http://h.test/", fetch: fetch as typeof globalThis.fetch }), opened };
}

const HEADERS = { "Content-Type": "text/event-stream", "X-Run-Id": RUN_ID, "X-Heartbeat-Interval": "2" };

/** A stream of `chunks` that then closes, breaks, or stays open in silence until it is aborted. */
function streamOf(chunks: Uint8Array[], then: "close" | "break" | "silence", signal: AbortSignal): Response {
  const left = [...chunks];
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      signal.addEventListener("abort", () => controller.error(new DOMException("aborted", "AbortError")));
    },
    pull(controller) {
      const next = left.shift();
      if (next) controller.enqueue(next);
      else if (then === "close") controller.close();
      else if (then === "break") controller.error(new TypeError("Load failed"));
      else return new Promise<void>(() => {});
      return undefined;
    },
  });
  return new Response(body, { headers: HEADERS });
}

const after = (connection: Connection) => Number(connection.headers.get("Last-Event-ID") ?? 0);
const tail = (from: number) => encode(RECORDS.slice(from).map(frameOf).join(""));

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Lets the follower go on, timers included, until it is done. */
async function settle<T>(running: Promise<T>): Promise<T> {
  let over = false;
  const watched = running.finally(() => (over = true));
  watched.catch(() => {});
  for (let i = 0; i < 5000 && !over; i++) await vi.advanceTimersByTimeAsync(100);
  expect(over).toBe(true);
  return watched;
}

describe("a follower", () => {
  test("whose connection breaks or closes after every third byte sees each record once and in order", async () => {
    const bytes = tail(0);
    for (let cut = 0; cut < bytes.length; cut += 3) {
      const { client } = clientOf((connection, attempt) =>
        attempt === 1
          ? streamOf([bytes.slice(0, cut)], cut % 2 ? "break" : "close", connection.signal)
          : streamOf([tail(after(connection))], "close", connection.signal),
      );
      const seen: RunRecord[] = [];
      const state = await settle(client.follow(RUN_ID, { onRecord: (record) => seen.push(record) }).run());
      expect(seen.map((record) => record.seq)).toEqual(RECORDS.map((record) => record.seq));
      expect(state).toEqual(WHOLE);
    }
  });

  test("survives a server that repeats records and merges them at random", async () => {
    for (let seed = 1; seed <= 50; seed++) {
      const random = seeded(seed);
      const { client } = clientOf((connection) => {
        const from = Math.max(0, after(connection) - Math.floor(random() * 3));
        const left = RECORDS.slice(after(connection));
        const repeated = RECORDS.slice(from, after(connection));
        const frames = [...repeated, ...(random() < 0.5 ? merged(left) : left)].map(frameOf);
        const some = frames.slice(0, 1 + Math.floor(random() * frames.length)).join("");
        return streamOf([encode(some)], random() < 0.5 ? "close" : "break", connection.signal);
      });
      expect(await settle(client.follow(RUN_ID, {}).run())).toEqual(WHOLE);
    }
  });

  test("sends a POST that was cut before its headers again with the same key, and never once it knows the run", async () => {
    const { client, opened } = clientOf((connection, attempt) => {
      if (attempt <= 2) throw new TypeError("Failed to fetch");
      if (attempt === 3) return streamOf([tail(0).slice(0, 400)], "break", connection.signal);
      return streamOf([tail(after(connection))], "close", connection.signal);
    });
    const runs: string[] = [];
    const state = await settle(client.start({ input: "What is a run?" }, "key-1", { onRun: (id) => runs.push(id) }).run());
    expect(opened.map((connection) => connection.method)).toEqual(["POST", "POST", "POST", "GET"]);
    expect(opened.slice(0, 3).map((connection) => connection.headers.get("Idempotency-Key"))).toEqual(["key-1", "key-1", "key-1"]);
    expect(opened[3]!.path).toBe(`/v1/runs/${RUN_ID}/events`);
    expect(runs).toEqual([RUN_ID]);
    expect(state).toEqual(WHOLE);
  });

  test("gives up a half-open link after two and a half heartbeats and resumes", async () => {
    const head = encode(RECORDS.slice(0, 14).map(frameOf).join(""));
    const { client, opened } = clientOf((connection, attempt) =>
      attempt === 1 ? streamOf([head], "silence", connection.signal) : streamOf([tail(after(connection))], "close", connection.signal),
    );
    const links: Link[] = [];
    const running = client.follow(RUN_ID, { onLink: (link) => links.push(link) }).run();
    await vi.advanceTimersByTimeAsync(4_900);
    expect(opened.length).toBe(1);
    expect(links).toEqual(["live"]);
    expect(await settle(running)).toEqual(WHOLE);
    expect(links).toEqual(["live", "down", "live", "closed"]);
    expect(opened[1]!.headers.get("Last-Event-ID")).toBe("14");
  });

  test("is kept alive by heartbeats, which are no frames", async () => {
    let beat = (_bytes: Uint8Array) => {};
    const { client, opened } = clientOf(
      () => new Response(new ReadableStream<Uint8Array>({ start: (controller) => void (beat = (bytes) => controller.enqueue(bytes)) }), { headers: HEADERS }),
    );
    const follower = client.follow(RUN_ID, {});
    const running = follower.run();
    for (let i = 0; i < 20; i++) {
      await vi.advanceTimersByTimeAsync(2_000);
      beat(encode(": hb\n"));
    }
    beat(tail(0));
    expect(await settle(running)).toEqual(WHOLE);
    expect(opened.length).toBe(1);
  });

  test("woken from a sleep it does not wait for the timer", async () => {
    const { client, opened } = clientOf((connection, attempt) =>
      attempt === 1 ? streamOf([tail(0).slice(0, 500)], "silence", connection.signal) : streamOf([tail(after(connection))], "close", connection.signal),
    );
    const follower = client.follow(RUN_ID, {});
    const running = follower.run();
    await vi.advanceTimersByTimeAsync(10);
    vi.setSystemTime(Date.now() + 3_600_000);
    follower.wake();
    expect(await settle(running)).toEqual(WHOLE);
    expect(opened.length).toBe(2);
  });

  test("jumps over a gap with a snapshot and goes on after it", async () => {
    const { client } = clientOf((connection, attempt) => {
      if (attempt === 1) return streamOf([tail(0).slice(0, 300)], "close", connection.signal);
      const early = fold(RECORDS.slice(0, 30), initial(RUN_ID));
      const frame = `event: run.snapshot\ndata: ${JSON.stringify({ as_of_seq: 30, state: early })}\n\n`;
      return streamOf([encode(frame), tail(30)], "close", connection.signal);
    });
    const snapshots: number[] = [];
    const records: number[] = [];
    const listener = { onSnapshot: () => void snapshots.push(records.length), onRecord: (record: RunRecord) => void records.push(record.seq) };
    expect(await settle(client.follow(RUN_ID, listener).run())).toEqual(WHOLE);
    expect(snapshots.length).toBe(1);
    expect(records.slice(snapshots[0])).toEqual(RECORDS.slice(30).map((record) => record.seq));
  });

  test("waits as long as Retry-After asks", async () => {
    const { client, opened } = clientOf((connection, attempt) =>
      attempt === 1
        ? new Response("busy", { status: 503, headers: { "Retry-After": "7" } })
        : streamOf([tail(0)], "close", connection.signal),
    );
    const running = client.follow(RUN_ID, {}).run();
    await vi.advanceTimersByTimeAsync(6_900);
    expect(opened.length).toBe(1);
    expect(await settle(running)).toEqual(WHOLE);
  });

  test("takes a refusal for an answer and reports the server's problem", async () => {
    const problem = { title: "Unknown run", status: 404, detail: "There is no run x.", code: "unknown_run", hint: "List them." };
    const { client, opened } = clientOf(() => new Response(JSON.stringify(problem), { status: 404 }));
    const error = await settle(client.follow(RUN_ID, {}).run().catch((caught: unknown) => caught));
    expect(error).toBeInstanceOf(Problem);
    expect(error).toMatchObject({ code: "unknown_run", hint: "List them.", message: "There is no run x.", status: 404 });
    expect(opened.length).toBe(1);
  });

  test("stops at 204", async () => {
    const { client, opened } = clientOf(() => new Response(null, { status: 204 }));
    await settle(client.follow(RUN_ID, {}).run());
    expect(opened.length).toBe(1);
  });

  test("that is closed leaves the run alone and hears nothing more", async () => {
    const { client, opened } = clientOf((connection) => streamOf([tail(0).slice(0, 400)], "silence", connection.signal));
    const follower = client.follow(RUN_ID, {});
    const running = follower.run();
    await vi.advanceTimersByTimeAsync(10);
    follower.close();
    const state = await settle(running);
    expect(state.seq).toBeGreaterThan(0);
    expect(opened.map((connection) => connection.method)).toEqual(["GET"]);
    expect(opened[0]!.signal.aborted).toBe(true);
  });

  test("can be read as an async iterator", async () => {
    const { client } = clientOf((connection) => streamOf([tail(after(connection))], "close", connection.signal));
    const seqs: number[] = [];
    for await (const record of client.records(RUN_ID)) seqs.push(record.seq);
    expect(seqs).toEqual(RECORDS.map((record) => record.seq));
  });
});
