import { describe, expect, test } from "vitest";
import { SseParser, type Frame } from "../src/core";
import { seeded } from "./seeded";

const bytes = (text: string) => new TextEncoder().encode(text);

function parse(chunks: Iterable<Uint8Array>): Frame[] {
  const parser = new SseParser();
  return [...chunks].flatMap((chunk) => parser.feed(chunk));
}

function cuts(whole: Uint8Array, random: () => number): Uint8Array[] {
  const chunks: Uint8Array[] = [];
  for (let start = 0; start < whole.length; ) {
    const end = Math.min(whole.length, start + 1 + Math.floor(random() * 9));
    chunks.push(whole.slice(start, end));
    start = end;
  }
  return chunks;
}

const STREAM = [
  "retry: 700\n\n",
  ": hb\n",
  'id: 1\nevent: text.delta\ndata: {"text":"蓄水池 🚰👩‍🔧","ts":1}\n\n',
  ": hb\n",
  'id: 2\nevent: text.delta\ndata: {"text":"a\u2028b\u0085c","ts":2}\n\n',
  "data: first\ndata: second\n\n",
  "event: nothing\n\n",
  "data\n\n",
].join("");

const FRAMES: Frame[] = [
  { id: "1", event: "text.delta", data: '{"text":"蓄水池 🚰👩‍🔧","ts":1}' },
  { id: "2", event: "text.delta", data: '{"text":"a\u2028b\u0085c","ts":2}' },
  { id: null, event: "message", data: "first\nsecond" },
  { id: null, event: "message", data: "" },
];

describe("the SSE parser", () => {
  for (const [name, end] of [["LF", "\n"], ["CRLF", "\r\n"], ["CR", "\r"]] as const) {
    const whole = bytes(STREAM.replaceAll("\n", end) + (end === "\r" ? ": the byte that shows the last CR was no CRLF" : ""));

    test(`reads a stream with ${name} line ends in one piece`, () => {
      expect(parse([whole])).toEqual(FRAMES);
    });

    test(`reads a stream with ${name} line ends one byte at a time`, () => {
      expect(parse(Array.from(whole, (byte) => Uint8Array.of(byte)))).toEqual(FRAMES);
    });

    test(`reads a stream with ${name} line ends in 200 random cuts`, () => {
      for (let seed = 1; seed <= 200; seed++) expect(parse(cuts(whole, seeded(seed)))).toEqual(FRAMES);
    });
  }

  test("remembers the last retry line and ignores one that is not a number", () => {
    const parser = new SseParser();
    parser.feed(bytes("retry: 1500\n\nretry: soon\n\n"));
    expect(parser.retryMs).toBe(1500);
  });

  test("holds back a frame until its blank line", () => {
    const parser = new SseParser();
    expect(parser.feed(bytes("id: 7\ndata: x\n"))).toEqual([]);
    expect(parser.feed(bytes("\n"))).toEqual([{ id: "7", event: "message", data: "x" }]);
  });

  test("does not carry an id from one frame to the next", () => {
    expect(parse([bytes("id: 7\ndata: x\n\ndata: y\n\n")]).map((frame) => frame.id)).toEqual(["7", null]);
  });
});
