/**
 * Where one writes: a question, or, while an answer runs, something to steer it with.
 * Enter sends, Shift+Enter breaks the line, Enter that ends an IME composition does neither.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../core";
import { active, agent, agents, announcement, ask, chooseAgent, draft } from "../chat/store";

type Mode = "next_turn" | "interrupt";

export function Composer({ onSent }: { onSent(): void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [mode, setMode] = useState<Mode>("next_turn");
  const [fault, setFault] = useState<string | null>(null);
  const run = active.value;
  const text = draft.value;
  useEffect(() => fit(area.current!), [text, run === null]);
  useEffect(() => area.current!.focus({ preventScroll: true }), []);
  useEffect(() => void (run ?? setMode("next_turn")), [run]);

  const send = async () => {
    const wanted = text.trim();
    if (!wanted || (run && !run.id)) return;
    draft.value = "";
    setFault(null);
    onSent();
    if (!run) return void ask(wanted);
    try {
      await run.steer(wanted, mode);
      announcement.value = "Sent to the running answer.";
    } catch (error) {
      // Nothing that was typed is lost: it goes back to where it came from.
      draft.value = draft.value || wanted;
      setFault(error instanceof Problem ? error.message : "It did not reach the server. Try again.");
    }
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      {fault && (
        <p class="fault" role="alert">
          {fault}
        </p>
      )}
      <div class="field">
        <textarea
          ref={area}
          rows={1}
          value={text}
          aria-label={run ? "Steer the running answer" : "Your question"}
          placeholder={run ? "Add to the answer" : "Ask a question"}
          onInput={(event) => (draft.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || composing(event)) return;
            event.preventDefault();
            void send();
          }}
        />
        {run && (
          <button type="button" class="stop" onClick={() => void run.stop()} disabled={run.stopping.value}>
            <span class="stop-mark" aria-hidden="true" />
            {run.stopping.value ? "Stopping" : "Stop"}
          </button>
        )}
        {(!run || text.trim()) && (
          <button type="submit" class="main" disabled={!text.trim() || (run !== null && !run.id)}>
            {run ? "Steer" : "Ask"}
          </button>
        )}
      </div>
      <p class="under">
        {run ? <ModeChoice mode={mode} onChange={setMode} /> : <AgentChoice />}
        <span class="keys">{run ? "Esc stops" : "Shift+Enter for a new line"}</span>
      </p>
    </form>
  );
}

/** True while Enter belongs to an input method. Safari ends the composition first and leaves only the key code. */
export const composing = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;

function fit(area: HTMLTextAreaElement): void {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight, 220)}px`;
}

function ModeChoice({ mode, onChange }: { mode: Mode; onChange(mode: Mode): void }) {
  const option = (value: Mode, label: string) => (
    <label>
      <input type="radio" name="mode" checked={mode === value} onChange={() => onChange(value)} />
      {label}
    </label>
  );
  return (
    <span class="mode" role="radiogroup" aria-label="When the steer takes effect">
      {option("next_turn", "when this turn ends")}
      {option("interrupt", "now")}
    </span>
  );
}

function AgentChoice() {
  if (agents.value.length < 2) return <span />;
  return (
    <label>
      Agent{" "}
      <select value={agent.value ?? agents.value[0]!.name} onChange={(event) => chooseAgent(event.currentTarget.value)}>
        {agents.value.map(({ name }) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
