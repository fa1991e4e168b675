/** What the page as a whole knows: which thread is open, which there are, who answers, and what is on screen beside. */
import { computed, effect, signal } from "@preact/signals";
import { type AgentSummary, Client, newKey, Problem, type Source, type ThreadSummary } from "../core";
import { recall, remember } from "./memory";
import { watchPresence } from "./presence";
import type { RunView } from "./run";
import { ThreadView } from "./thread";

export const apiBase = new URL(".", document.baseURI).href;

const LOOK_EVERY_MS = 5_000;

/** The server's key, where it wants one; for this tab only. */
export const apiKey = signal<string | null>(recall<string>("session", "key"));
export const wantsKey = signal(false);
export const agents = signal<readonly AgentSummary[]>([]);
export const agent = signal<string | null>(recall<string>("local", "agent"));
export const threads = signal<readonly ThreadSummary[]>([]);
export const threadsOpen = signal(false);
export const thread = signal<ThreadView>(threadFromUrl());
/** The passages on show, and which of them is meant. */
export const passages = signal<{ readonly sources: readonly Source[]; readonly chosen: number } | null>(null);
/** One sentence for people who listen. */
export const announcement = signal("");
/** Text the composer should take over (an example, say). */
export const draft = signal("");

export const active = computed(() => thread.value.active.value);

function client(): Client {
  const headers: Record<string, string> = apiKey.value ? { Authorization: `Bearer ${apiKey.value}` } : {};
  return new Client({ baseUrl: apiBase, headers });
}

function threadFromUrl(): ThreadView {
  return threadNamed(new URL(location.href).searchParams.get("thread") ?? newKey());
}

function threadNamed(id: string): ThreadView {
  return new ThreadView(id, client(), (runId) => {
    channel?.postMessage({ thread: id, run: runId });
    void refreshThreads();
  });
}

/** Tabs of one browser tell each other at once; other machines are noticed at the next look. */
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("headrace");

export function ask(text: string): RunView {
  const current = thread.value;
  showInUrl(current.id, "replace");
  announcement.value = "Asked.";
  return current.ask(text, agent.value);
}

/** Asks an earlier question again in other words: in a thread of its own, so that the old answer stays. */
export function askInstead(run: RunView, text: string): void {
  const earlier = thread.value.before(run);
  const branch = threadNamed(newKey());
  replaceThread(branch);
  showInUrl(branch.id, "push");
  branch.askAfter(earlier, text, run.state.value.agent || agent.value);
}

export function newThread(): void {
  replaceThread(threadNamed(newKey()));
  threadsOpen.value = false;
  history.pushState(null, "", location.pathname);
}

export function openThread(id: string): void {
  threadsOpen.value = false;
  if (id === thread.value.id) return;
  showInUrl(id, "push");
  openFromUrl();
}

export function chooseAgent(name: string): void {
  agent.value = name;
  remember("local", "agent", name);
}

export async function useKey(key: string): Promise<void> {
  apiKey.value = key;
  remember("session", "key", key);
  wantsKey.value = false;
  openFromUrl();
  await lookAround();
}

export async function refreshThreads(): Promise<void> {
  threads.value = await client().threads().catch(() => threads.value);
}

function openFromUrl(): void {
  const opened = threadFromUrl();
  replaceThread(opened);
  if (new URL(location.href).searchParams.has("thread")) void opened.load();
}

function replaceThread(next: ThreadView): void {
  thread.value.close();
  passages.value = null;
  thread.value = next;
}

function showInUrl(id: string, how: "push" | "replace"): void {
  const url = new URL(location.href);
  if (url.searchParams.get("thread") === id) return;
  url.searchParams.set("thread", id);
  history[`${how}State`](null, "", url);
}

async function lookAround(): Promise<void> {
  try {
    agents.value = await client().agents();
    if (!agents.value.some(({ name }) => name === agent.value)) agent.value = null;
  } catch (error) {
    wantsKey.value = error instanceof Problem && error.status === 401;
  }
  await refreshThreads();
}

export function begin(): void {
  if (new URL(location.href).searchParams.has("thread")) void thread.value.load();
  void lookAround();
  addEventListener("popstate", openFromUrl);
  channel?.addEventListener("message", ({ data }) => {
    if (data.thread === thread.value.id) void thread.value.refresh().catch(() => {});
    void refreshThreads();
  });
  watchPresence({ onReturn: (awayMs) => thread.value.comeBack(awayMs), onLeave: () => thread.value.leave() });
  setInterval(() => {
    if (document.hidden || wantsKey.value) return;
    if (thread.value.problem.value) void thread.value.load();
    else if (thread.value.runs.value.length > 0) void thread.value.refresh().catch(() => {});
    if (agents.value.length === 0) void lookAround();
  }, LOOK_EVERY_MS);
  effect(() => {
    const title = threads.value.find(({ thread_id }) => thread_id === thread.value.id)?.title;
    document.title = `${active.value ? "● " : ""}${title ? `${title.slice(0, 60)} · ` : ""}Headrace`;
  });
}
