/** Before the first question. */
import { agents, apiBase, ask } from "../chat/store";
import { CopyButton } from "./CopyButton";

const EXAMPLES = [
  "What happens to a run when the server is killed?",
  "How does a client resume after a lost connection?",
  "Which protocols can I use to talk to Headrace?",
];

export function Empty() {
  return (
    <div class="empty">
      <h1>Ask, and nothing is lost on the way.</h1>
      <p class="lead">
        An answer lives in a log, not in this connection. Pull the cable, reload, open a second tab: it is where you left
        it.
      </p>
      <ul class="examples">
        {EXAMPLES.map((example) => (
          <li key={example}>
            <button type="button" onClick={() => ask(example)}>
              {example}
            </button>
          </li>
        ))}
      </ul>
      <section class="terminal" aria-label="From a terminal">
        <h2>From a terminal</h2>
        <Line name="ask" command={`curl -N ${apiBase}v1/runs -H 'accept: text/event-stream' -H 'content-type: application/json' -d '{"input":"${EXAMPLES[0]}"}'`} />
        <Line name="resume" command={`curl -N '${apiBase}v1/runs/RUN_ID/events?after=12'`} />
        <Line
          name="OpenAI"
          command={`curl -N ${apiBase}v1/chat/completions -H 'content-type: application/json' -d '{"model":"${agents.value[0]?.name ?? "default"}","stream":true,"messages":[{"role":"user","content":"${EXAMPLES[0]}"}]}'`}
        />
      </section>
    </div>
  );
}

function Line({ name, command }: { name: string; command: string }) {
  return (
    <div class="command">
      <span class="command-name">{name}</span>
      <code tabIndex={0}>{command}</code>
      <CopyButton text={command} what={`the command: ${name}`} />
    </div>
  );
}
