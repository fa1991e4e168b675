/**
 * The conversation. It follows the newest words only while the reader is at the end; who has scrolled up is left in
 * peace and offered the way back.
 */
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { active, thread } from "../chat/store";
import { Empty } from "./Empty";
import { RunArticle } from "./RunArticle";

const NEAR_PX = 40;
const CALM_AFTER_MS = 1_000;

export interface Scroll {
  /** Follow again, from here on. */
  toEnd(): void;
}

export function Transcript({ scroll }: { scroll: RefObject<Scroll | null> }) {
  const view = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const [atEnd, setAtEnd] = useState(true);
  const following = useRef(true);
  const lastTop = useRef(0);
  /** Until then a thread that was opened is still arriving. What grows later was unfolded by hand, and stays in place. */
  const calmAt = useRef(0);
  const { runs, loading, problem, id } = thread.value;

  const toEnd = () => {
    following.current = true;
    view.current!.scrollTop = view.current!.scrollHeight;
  };
  scroll.current = { toEnd };
  useLayoutEffect(toEnd, [id]);
  useEffect(() => {
    const watch = new ResizeObserver(() => {
      if (thread.value.loading.value) calmAt.current = Date.now() + CALM_AFTER_MS;
      if (following.current && (active.value || Date.now() < calmAt.current)) toEnd();
    });
    watch.observe(content.current!);
    return () => watch.disconnect();
  }, []);
  const quiet = active.value === null;
  useEffect(() => {
    // What stands below a finished answer comes with its end.
    if (quiet && following.current) toEnd();
  }, [quiet]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = view.current!;
    // Only a move upwards is a wish to leave the end: content that grew since our own last move looks the same otherwise.
    if (scrollHeight - clientHeight - scrollTop <= NEAR_PX) following.current = true;
    else if (scrollTop < lastTop.current) following.current = false;
    lastTop.current = scrollTop;
    setAtEnd(following.current);
  };

  const list = runs.value;
  return (
    <div class="window">
      <div class="transcript" ref={view} onScroll={onScroll} tabIndex={0} role="region" aria-label="Conversation">
        <div
          class="column"
          ref={content}
          role="log"
          aria-label="Questions and answers"
          aria-live={active.value ? "off" : undefined}
          aria-busy={active.value !== null}
        >
          {list.length === 0 && !loading.value && <Empty />}
          {loading.value && <p class="aside-note">Reading the thread…</p>}
          {problem.value && (
            <p class="card bad fault">
              {problem.value.message} {problem.value.hint}
            </p>
          )}
          {list.map((run, index) => (
            <RunArticle key={keyOf(run)} run={run} last={index === list.length - 1} />
          ))}
        </div>
      </div>
      {!atEnd && list.length > 0 && (
        <button type="button" class="jump" onClick={toEnd}>
          Jump to latest
        </button>
      )}
    </div>
  );
}

const keys = new WeakMap<object, number>();
let nextKey = 0;

/** A run keeps its element when it gets its name. */
function keyOf(run: object): number {
  if (!keys.has(run)) keys.set(run, nextKey++);
  return keys.get(run)!;
}
