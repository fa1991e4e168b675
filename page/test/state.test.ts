import { describe, expect, test } from "vitest";
import { apply, fold, hydrate, initial, isEnded, isTerminal, textOf, type RunState } from "../src/core";
import { merged, RECORDS, RUN_ID } from "./run";

const whole = fold(RECORDS, initial(RUN_ID));

/** As the server sends it: nothing that is at its default. */
function onTheWire(state: RunState): object {
  const drop = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(drop);
    if (typeof value !== "object" || value === null) return value;
    const kept = Object.entries(value).filter(([, field]) => !isDefault(field));
    return Object.fromEntries(kept.map(([key, field]) => [key, drop(field)]));
  };
  return JSON.parse(JSON.stringify(drop(state)));
}

const isDefault = (value: unknown) =>
  value === null || value === 0 || value === "" || value === false || (Array.isArray(value) && value.length === 0);

describe("the reducer", () => {
  test("folds a run that holds every record type", () => {
    expect(whole.status).toBe("completed");
    expect(isEnded(whole)).toBe(true);
    expect(textOf(whole)).toBe("A run is a sequence 🚰 of records in a log.");
    expect(whole.turns[0]).toMatchObject({ thinking: "", text_deltas: 3, retracted: 1, finish_reason: "tool_calls" });
    expect(whole.tool_calls.map((call) => [call.name, call.done, call.error?.hint ?? null])).toEqual([
      ["clock", true, null],
      ["search", true, "build it"],
    ]);
    expect(whole.nodes.map((node) => [node.node, node.status])).toEqual([["intent", "completed"], ["retrieve", "fallback"]]);
    expect(whole.steers.map((steer) => [steer.status, steer.turn, steer.mode])).toEqual([
      ["applied", 2, "interrupt"],
      ["returned", null, "next_turn"],
    ]);
    expect(whole.sources[0]).toEqual({ id: "s1", title: "PROTOCOL", path: "PROTOCOL.md", span: [0, 40], score: 0.8, text: "A record is…" });
    expect(whole).toMatchObject({ recoveries: 1, cancel_requested: true, queue_position: null, seq: RECORDS.length });
  });

  test("a snapshot at any record plus the later records equals the full replay", () => {
    for (let cut = 0; cut <= RECORDS.length; cut++) {
      const early = fold(RECORDS.slice(0, cut), initial(RUN_ID));
      const snapshot = { ...hydrate(RUN_ID, onTheWire(early)), seq: early.seq };
      expect(snapshot).toEqual(early);
      expect(fold(RECORDS.slice(cut), snapshot)).toEqual(whole);
    }
  });

  test("a record it has seen changes nothing", () => {
    for (const record of RECORDS) expect(apply(whole, record)).toBe(whole);
  });

  test("merged frames fold to the same state as single records", () => {
    expect(merged(RECORDS).length).toBeLessThan(RECORDS.length);
    expect(fold(merged(RECORDS), initial(RUN_ID))).toEqual(whole);
  });

  test("is queued while it waits at its engine, and runs on at place 0", () => {
    const queued = (seq: number, position: number) => ({ seq, ts: seq, type: "run.queued", n: 1, data: { position } });
    const waiting = fold([...RECORDS.slice(0, 1), queued(2, 3)], initial(RUN_ID));
    expect(waiting).toMatchObject({ status: "queued", queue_position: 3 });
    expect(apply(waiting, queued(3, 0))).toMatchObject({ status: "running", queue_position: null });
  });

  test("waits while an input is open and runs on once it is received", () => {
    const at = (type: string) => RECORDS.findIndex((record) => record.type === type) + 1;
    expect(fold(RECORDS.slice(0, at("input.requested")), initial(RUN_ID)).status).toBe("waiting");
    expect(fold(RECORDS.slice(0, at("input.received")), initial(RUN_ID)).status).toBe("running");
  });

  test("a record type it does not know moves the cursor and nothing else", () => {
    const later = apply(initial(RUN_ID), { seq: 1, ts: 1, type: "weather.changed", n: 1, data: {} });
    expect(later).toEqual({ ...initial(RUN_ID), seq: 1 });
  });

  test("keeps the identity of what a record did not change", () => {
    const before = fold(RECORDS.slice(0, 31), initial(RUN_ID));
    const after = apply(before, RECORDS[31]!);
    expect(after.turns[0]).toBe(before.turns[0]);
    expect(after.tool_calls).toBe(before.tool_calls);
  });

  test("an agent that speaks without turns gets an implicit one", () => {
    const state = apply(initial(RUN_ID), { seq: 1, ts: 1, type: "text.delta", n: 1, data: { text: "hello" } });
    expect(state.turns).toMatchObject([{ turn: 0, text: "hello", started_seq: 1 }]);
  });

  test("only run.finished and run.error are terminal", () => {
    expect(RECORDS.filter(isTerminal).map((record) => record.type)).toEqual(["run.finished"]);
  });
});
