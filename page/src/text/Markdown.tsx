/** Markdown as elements. A block that has not changed is the same VNode as before, so it costs nothing. */
import type { ComponentChildren, VNode } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { CopyButton } from "../ui/CopyButton";
import { type Align, type Block, BlockReader } from "./blocks";
import { highlight } from "./highlight";
import { inline, type Inline } from "./inline";

/** How a citation looks, or null where nothing is cited under that number. */
export type Cite = (number: number) => VNode | null;

interface Props {
  readonly text: string;
  /** More may come. */
  readonly open: boolean;
  readonly cite: Cite;
}

export function Markdown({ text, open, cite }: Props) {
  const reader = useRef<BlockReader | null>(null);
  reader.current ??= new BlockReader();
  const blocks = reader.current.read(text, open);
  return (
    <div class="prose" lang={languageOf(text.slice(0, 400))}>
      {blocks.map((block, index) => (
        <Memo key={index} block={block} open={open && index === blocks.length - 1} cite={cite} />
      ))}
    </div>
  );
}

/** Chinese wants its own line height and no slanted type; the share of Han characters is enough to tell. */
function languageOf(sample: string): string | undefined {
  const han = sample.match(/[\u3400-\u9fff]/g)?.length ?? 0;
  return han * 4 > sample.length ? "zh" : undefined;
}

function Memo({ block, open, cite }: { block: Block; open: boolean; cite: Cite }) {
  return useMemo(() => <BlockView block={block} open={open} cite={cite} />, [block, open, cite]);
}

function BlockView({ block, open, cite }: { block: Block; open: boolean; cite: Cite }): VNode {
  switch (block.kind) {
    case "heading": {
      // A page has its own headings above: an answer's begin at the third level.
      const Tag = `h${Math.min(6, block.level + 2)}` as "h3";
      return <Tag>{spans(block.text, open, cite)}</Tag>;
    }
    case "paragraph":
      return <p>{spans(block.text, open, cite)}</p>;
    case "code":
      return <Code language={block.language} text={block.text} open={open && !block.closed} />;
    case "quote":
      return <blockquote>{blocksOf(block.blocks, open, cite)}</blockquote>;
    case "list":
      return <ListView block={block} open={open} cite={cite} />;
    case "table":
      return <TableView block={block} open={open} cite={cite} />;
    case "rule":
      return <hr />;
  }
}

function blocksOf(blocks: readonly Block[], open: boolean, cite: Cite) {
  return blocks.map((block, index) => (
    <BlockView key={index} block={block} open={open && index === blocks.length - 1} cite={cite} />
  ));
}

function ListView({ block, open, cite }: { block: Block & { kind: "list" }; open: boolean; cite: Cite }) {
  const items = block.items.map((item, index) => {
    const last = open && index === block.items.length - 1;
    const [only, ...more] = item;
    const tight = !block.loose && only?.kind === "paragraph";
    return (
      <li key={index}>
        {tight ? (
          <>
            {spans(only.text, last && more.length === 0, cite)}
            {blocksOf(more, last, cite)}
          </>
        ) : (
          blocksOf(item, last, cite)
        )}
      </li>
    );
  });
  return block.start === null ? <ul>{items}</ul> : <ol start={block.start}>{items}</ol>;
}

function TableView({ block, open, cite }: { block: Block & { kind: "table" }; open: boolean; cite: Cite }) {
  const cell = (Tag: "td" | "th", text: string, column: number, last: boolean) => (
    <Tag key={column} class={alignClass(block.align[column])}>
      {spans(text, last, cite)}
    </Tag>
  );
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{block.head.map((text, column) => cell("th", text, column, open && block.rows.length === 0))}</tr>
        </thead>
        <tbody>
          {block.rows.map((row, index) => (
            <tr key={index}>{row.map((text, column) => cell("td", text, column, open && index === block.rows.length - 1))}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const alignClass = (align: Align | undefined) => (align ? `align-${align}` : undefined);

function Code({ language, text, open }: { language: string; text: string; open: boolean }) {
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        {!open && <CopyButton text={text} what="code" />}
      </figcaption>
      <pre tabIndex={0}>{open ? <Growing text={text} /> : <Coloured text={text} language={language} />}</pre>
    </figure>
  );
}

function Coloured({ text, language }: { text: string; language: string }) {
  return useMemo(
    () => (
      <code>{highlight(text, language).map(([kind, part]) => (kind ? <span class={`hl-${kind}`}>{part}</span> : part))}</code>
    ),
    [text, language],
  );
}

/** Text that only grows: what is new is appended, so that a long block is not set again for each token. */
export function Growing({ text }: { text: string }) {
  const host = useRef<HTMLElement>(null);
  const shown = useRef("");
  useLayoutEffect(() => {
    const element = host.current!;
    if (text === shown.current) return;
    const node = element.firstChild as Text | null;
    if (node && text.startsWith(shown.current)) node.appendData(text.slice(shown.current.length));
    else element.textContent = text;
    shown.current = text;
  });
  return <code ref={host} />;
}

function spans(text: string, open: boolean, cite: Cite): ComponentChildren {
  return inline(text, open).map((part, index) => span(part, index, cite));
}

function span(part: Inline, key: number, cite: Cite): ComponentChildren {
  if (typeof part === "string") return part;
  const inner = "inner" in part ? part.inner.map((child, index) => span(child, index, cite)) : null;
  switch (part.kind) {
    case "code":
      return <code key={key}>{part.text}</code>;
    case "strong":
      return <strong key={key}>{inner}</strong>;
    case "em":
      return <em key={key}>{inner}</em>;
    case "del":
      return <del key={key}>{inner}</del>;
    case "link":
      return (
        <a key={key} href={part.href} target="_blank" rel="noopener noreferrer">
          {inner}
        </a>
      );
    case "cite":
      return cite(part.number) ?? `[${part.number}]`;
    case "break":
      return <br key={key} />;
  }
}
