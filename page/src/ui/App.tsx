import { useEffect, useRef, useState } from "preact/hooks";
import { isEnded } from "../core";
import { active, announcement, newThread, passages, threadsOpen, useKey, wantsKey } from "../chat/store";
import { Composer, composing } from "./Composer";
import { Passages } from "./Passages";
import { nextTheme, theme } from "./theme";
import { Threads } from "./Threads";
import { type Scroll, Transcript } from "./Transcript";

export function App() {
  const scroll = useRef<Scroll>(null);
  useKeys();
  return (
    <div class={passages.value ? "page with-passages" : "page"}>
      <Header />
      <Threads />
      {threadsOpen.value && <div class="veil" onClick={() => (threadsOpen.value = false)} />}
      <main>
        {wantsKey.value ? <KeyForm /> : <Transcript scroll={scroll} />}
        <LinkBanner />
        <Composer onSent={() => scroll.current?.toEnd()} />
      </main>
      <Passages />
      <Status />
    </div>
  );
}

function Header() {
  return (
    <header class="top">
      <button
        type="button"
        class="quiet menu"
        aria-expanded={threadsOpen.value}
        aria-controls="threads"
        onClick={() => (threadsOpen.value = !threadsOpen.value)}
      >
        Threads
      </button>
      <a
        class="mark"
        href="."
        onClick={(event) => {
          event.preventDefault();
          newThread();
        }}
      >
        <svg viewBox="0 0 32 20" width="28" height="18" aria-hidden="true">
          <path d="M2 2v16M2 10h9c6 0 5 8 11 8h8M30 12v6" />
        </svg>
        Headrace
      </a>
      <button type="button" class="quiet theme" onClick={nextTheme} aria-label={`Colours: ${THEMES[theme.value]}`}>
        <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
          <circle cx="8" cy="8" r="6.5" />
          <path d="M8 1.5a6.5 6.5 0 0 1 0 13z" />
        </svg>
        {THEMES[theme.value]}
      </button>
    </header>
  );
}

const THEMES = { system: "Auto", dark: "Dark", light: "Light" };

/** Esc closes what lies on top, and else stops the run. */
function useKeys(): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || composing(event)) return;
      if (threadsOpen.value) threadsOpen.value = false;
      else if (passages.value) passages.value = null;
      else void active.value?.stop();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

const BANNER_AFTER_MS = 300;

/** Shown while the link of the running answer is down; a cut that is mended at once is not worth a word. */
function LinkBanner() {
  const run = active.value;
  const down = run?.link.value === "down";
  const [shown, setShown] = useState(false);
  useEffect(() => {
    if (!down) return setShown(false);
    const timer = setTimeout(() => setShown(true), BANNER_AFTER_MS);
    return () => clearTimeout(timer);
  }, [down]);
  if (!shown || !down) return null;
  return (
    <p class="banner" role="status">
      <span class="pulse" aria-hidden="true" />
      {run.id ? "Connection lost. The run goes on; reconnecting…" : "No connection. The question is sent as soon as there is one."}
      <button type="button" class="quiet" onClick={() => run.comeBack(0)}>
        Now
      </button>
    </p>
  );
}

/** For people who listen: that it began, and how it ended; never the words as they stream. */
function Status() {
  const run = active.value;
  const last = useRef(run);
  useEffect(() => {
    if (run) announcement.value = run.stopping.value ? "Stopping." : "Answering.";
    else if (last.current && isEnded(last.current.state.value)) announcement.value = ENDINGS[last.current.state.value.status] ?? "";
    else if (last.current?.problem.value) announcement.value = "The question was refused.";
    last.current = run;
  }, [run, run?.stopping.value]);
  return (
    <p class="offscreen" role="status" aria-live="polite">
      {announcement.value}
    </p>
  );
}

const ENDINGS: { readonly [status: string]: string } = {
  completed: "The answer is complete.",
  cancelled: "Stopped.",
  stopped_early: "The answer ended early.",
  failed: "The run failed.",
};

function KeyForm() {
  const [key, setKey] = useState("");
  return (
    <div class="transcript" role="region" aria-label="Key">
      <form
        class="column key-form"
        onSubmit={(event) => {
          event.preventDefault();
          void useKey(key.trim());
        }}
      >
        <h1>This server asks for a key.</h1>
        <p class="lead">It is kept in this tab only and sent as a bearer token.</p>
        <div class="field">
          <input type="password" value={key} aria-label="API key" onInput={(event) => setKey(event.currentTarget.value)} />
          <button type="submit" class="main">
            Continue
          </button>
        </div>
      </form>
    </div>
  );
}
