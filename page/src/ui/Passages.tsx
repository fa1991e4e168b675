/** The passages an answer rests on, beside it; on a narrow screen over it, from below. */
import { useEffect, useRef } from "preact/hooks";
import type { Source } from "../core";
import { passages } from "../chat/store";
import { safeHref } from "../text/inline";
import { type Cite, Markdown } from "../text/Markdown";

/** A passage's own brackets cite nothing here. */
const noCite: Cite = () => null;

export function Passages() {
  const shown = passages.value;
  const panel = useRef<HTMLElement>(null);
  const before = useRef<Element | null>(null);
  const isOpen = shown !== null;
  useEffect(() => {
    if (isOpen) before.current = document.activeElement;
    else if (before.current instanceof HTMLElement) before.current.focus();
  }, [isOpen]);
  useEffect(() => {
    const meant = panel.current?.querySelector<HTMLElement>("[aria-current]");
    meant?.focus();
    meant?.scrollIntoView({ block: "nearest" });
  }, [shown]);
  if (!shown) return null;
  return (
    <aside class="passages" aria-label="Sources" ref={panel}>
      <header>
        <h2>Sources</h2>
        <button type="button" class="quiet" onClick={() => (passages.value = null)}>
          Close
        </button>
      </header>
      <ol>
        {shown.sources.map((source, index) => (
          <Passage key={source.id} source={source} number={index + 1} chosen={index === shown.chosen} />
        ))}
      </ol>
    </aside>
  );
}

function Passage({ source, number, chosen }: { source: Source; number: number; chosen: boolean }) {
  const href = source.url ? safeHref(source.url) : null;
  const where = [source.path, source.span && `characters ${source.span[0]}–${source.span[1]}`, source.score && `score ${source.score.toFixed(2)}`];
  return (
    <li tabIndex={-1} aria-current={chosen ? "true" : undefined}>
      <h3>
        <span class="cite">{number}</span>
        {href ? (
          <a href={href} target="_blank" rel="noopener noreferrer">
            {source.title}
          </a>
        ) : (
          source.title
        )}
      </h3>
      {source.text && (
        <blockquote>
          <Markdown text={source.text} open={false} cite={noCite} />
        </blockquote>
      )}
      <p class="where">{where.filter(Boolean).join(" · ")}</p>
    </li>
  );
}
