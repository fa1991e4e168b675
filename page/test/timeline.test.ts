import { describe, expect, test } from "vitest";
import { axisEnd, delivery, emptyTimeline, extend, lasted, speed, type Timeline } from "../src/core";
import { merged, RECORDS } from "./run";

const timelineOf = (records: readonly (typeof RECORDS)[number][]) => records.reduce<Timeline>(extend, emptyTimeline);
const whole = timelineOf(RECORDS);

describe("the timeline", () => {
  test("has a span for each phase, from records' own stamps", () => {
    const rows = whole.spans.map((span) => [span.phase, span.label, span.start - whole.origin, lasted(span, 0), span.status]);
    expect(rows).toEqual([
      ["queue", "Queue", 10, 20, "ok"],
      ["node", "intent", 30, 20, "ok"],
      ["node", "retrieve", 30, 40, "failed"],
      ["cache", "semantic cache", 60, 0, "ok"],
      ["first_token", "First token", 100, 10, "ok"],
      ["thinking", "Thinking", 110, 20, "ok"],
      ["decode", "Writing", 130, 40, "ok"],
      ["decode", "Writing clock()", 170, 20, "ok"],
      ["tool", "clock()", 190, 70, "ok"],
      ["decode", "Writing search()", 200, 10, "ok"],
      ["tool", "search()", 210, 60, "failed"],
      ["wait", "Waits for you", 230, 10, "ok"],
      ["first_token", "First token", 300, 10, "ok"],
      ["decode", "Writing", 310, 40, "ok"],
    ]);
    expect([whole.origin, whole.end, whole.firstText].map((ts) => ts! - whole.origin)).toEqual([0, 380, 130]);
  });

  test("nothing is left open after the terminal record", () => {
    for (let cut = 1; cut <= RECORDS.length; cut++) {
      const last = { ...RECORDS.at(-1)!, seq: cut + 1 };
      expect(timelineOf([...RECORDS.slice(0, cut), last]).spans.every((span) => span.end !== null)).toBe(true);
    }
  });

  test("counts tokens the same when frames were merged", () => {
    const tokens = (timeline: Timeline) => timeline.spans.reduce((sum, span) => sum + span.tokens, 0);
    expect(tokens(timelineOf(merged(RECORDS)))).toBe(tokens(whole));
    expect(tokens(whole)).toBe(7);
  });

  test("does not pretend a speed from a handful of tokens", () => {
    expect(speed(whole, 0)).toBeNull();
    const started = timelineOf(RECORDS.slice(0, 11));
    const spoken = Array.from({ length: 20 }, (_, i) => ({ seq: 12 + i, ts: started.lastTs + 10 + i * 10, type: "text.delta", n: 1, data: { text: "x" } }));
    const timeline = spoken.reduce<Timeline>(extend, started);
    expect(speed(timeline, timeline.lastTs + 10)).toBe(100);
  });

  test("an open span grows to now, an ended run's axis does not", () => {
    const open = timelineOf(RECORDS.slice(0, 11));
    expect(lasted(open.spans.at(-1)!, open.lastTs + 50)).toBe(50);
    expect(axisEnd(open, open.lastTs + 50)).toBe(open.lastTs + 50);
    expect(axisEnd(whole, whole.end! + 99_999)).toBe(whole.end);
  });

  test("delivery compares durations, so a reader's clock that is an hour off changes nothing", () => {
    const asked = 50_000 - 3_600_000;
    expect(delivery(whole, asked, asked + 130 + 25)).toBe(25);
    expect(delivery(whole, null, 1)).toBeNull();
  });
});
