import { describe, expect, test } from "vitest";
import { answerOf, backoff, silenceLimit } from "../src/core";

describe("backoff", () => {
  test("doubles up to ten seconds and keeps at least half of it", () => {
    expect([1, 2, 3, 4].map((attempt) => backoff(attempt, 1))).toEqual([250, 500, 1000, 2000]);
    expect(backoff(50, 1)).toBe(10_000);
    expect(backoff(50, 0)).toBe(5_000);
  });

  test("obeys Retry-After and the server's floor", () => {
    expect(backoff(1, 0, 250, "3")).toBe(3000);
    expect(backoff(1, 1, 2000)).toBe(2000);
    expect(backoff(1, 1, 250, "Wed, 21 Oct 2026 07:28:00 GMT")).toBe(250);
  });
});

test("the silence limit is two and a half of the server's heartbeats, or of fifteen seconds", () => {
  expect(silenceLimit("2")).toBe(5_000);
  expect([null, "", "soon", "-1"].map(silenceLimit)).toEqual([37_500, 37_500, 37_500, 37_500]);
});

test("only a passing fault is worth another try", () => {
  expect([200, 204, 400, 404, 408, 409, 429, 500, 503].map(answerOf)).toEqual([
    "stream", "nothing_left", "refused", "refused", "retry", "refused", "retry", "retry", "retry",
  ]);
});
