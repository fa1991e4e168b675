/** The threads, newest first; a column on a wide screen, a drawer on a narrow one. */
import { newThread, openThread, thread, threads, threadsOpen } from "../chat/store";
import { ago } from "./format";

export function Threads() {
  const now = Date.now();
  return (
    <nav class={threadsOpen.value ? "threads open" : "threads"} aria-label="Threads" id="threads">
      <button type="button" class="new" onClick={newThread}>
        New thread
      </button>
      <ol>
        {threads.value.map(({ thread_id, title, updated_ts, active_run }) => (
          <li key={thread_id}>
            <a
              href={`?thread=${encodeURIComponent(thread_id)}`}
              aria-current={thread_id === thread.value.id ? "page" : undefined}
              onClick={(event) => {
                if (event.metaKey || event.ctrlKey || event.shiftKey) return;
                event.preventDefault();
                openThread(thread_id);
              }}
            >
              <span class="title">{title || "Untitled"}</span>
              <span class={active_run ? "when running" : "when"}>{active_run ? "running" : updated_ts ? ago(updated_ts, now) : ""}</span>
            </a>
          </li>
        ))}
      </ol>
    </nav>
  );
}
