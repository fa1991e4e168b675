/** Numbers and times as people read them. */
import type { Json } from "../core";

export function duration(ms: number): string {
  if (ms < 1) return "<1 ms";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1_000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** "14:32", with the day in front when it was another one. */
export function clock(ts: number, now = new Date()): string {
  const then = new Date(ts);
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (then.toDateString() === now.toDateString()) return time;
  return `${then.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

export function ago(ts: number, now: number): string {
  const minutes = Math.floor((now - ts) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return `${Math.floor(minutes / (24 * 60))} d`;
}

/** A value for reading: text as it is, anything else as indented JSON. */
export const readable = (value: Json): string => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** A value on one line, cut to `length`. */
export function brief(value: Json, length: number): string {
  const line = (typeof value === "string" ? value : JSON.stringify(value)).replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}
