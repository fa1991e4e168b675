/**
 * Markdown into blocks, read as it grows.
 *
 * What a finished block says can no longer change, so a growing answer is parsed from the last unfinished block on,
 * never from its beginning. While it grows, syntax that is not whole yet is held back or taken as closed: a reader
 * never sees a raw marker that becomes something else a moment later.
 */

export type Align = "left" | "center" | "right" | null;

export type Block =
  | { readonly kind: "heading"; readonly level: number; readonly text: string }
  | { readonly kind: "paragraph"; readonly text: string }
  | { readonly kind: "code"; readonly language: string; readonly text: string; readonly closed: boolean }
  | { readonly kind: "list"; readonly start: number | null; readonly loose: boolean; readonly items: readonly (readonly Block[])[] }
  | { readonly kind: "quote"; readonly blocks: readonly Block[] }
  | { readonly kind: "table"; readonly head: readonly string[]; readonly align: readonly Align[]; readonly rows: readonly (readonly string[])[] }
  | { readonly kind: "rule" };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITER = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
/** A last line that may yet become a marker. */
const HALF = /^\s*(#{1,6}|[-*+]|\d{1,9}[.)]?|`{1,2}|~{1,2}|>|[-*_]{1,2}|\|[^\n]*)\s*$/;

const MAX_DEPTH = 8;

/** The blocks of a text that grows. `read` may be called with ever longer versions of the same text. */
export class BlockReader {
  private settled: Block[] = [];
  private offset = 0;
  private text = "";

  /** `open` while more may come. Blocks that are settled keep their identity from call to call. */
  read(text: string, open: boolean): readonly Block[] {
    if (!text.startsWith(this.text.slice(0, this.offset))) this.restart();
    this.text = text;
    const rest = open ? withoutHalfLine(text.slice(this.offset)) : text.slice(this.offset);
    const lines = rest.split("\n");
    const parsed = scan(lines, open, 0);
    const settled = this.settle(parsed, lines);
    return [...this.settled, ...parsed.slice(settled).map(([block]) => block)];
  }

  /** How many of `parsed` are settled: those before one that began with a whole line. */
  private settle(parsed: readonly Located[], lines: readonly string[]): number {
    let count = 0;
    while (count + 1 < parsed.length && parsed[count + 1]![1] < lines.length - 1) count++;
    if (count > 0) {
      this.settled.push(...parsed.slice(0, count).map(([block]) => block));
      this.offset += lines.slice(0, parsed[count]![1]).reduce((sum, line) => sum + line.length + 1, 0);
    }
    return count;
  }

  private restart(): void {
    this.settled = [];
    this.offset = 0;
  }
}

export const parse = (text: string): readonly Block[] => scan(text.split("\n"), false, 0).map(([block]) => block);

/** A block and the index of its first line. */
type Located = readonly [Block, number];

function withoutHalfLine(text: string): string {
  const start = text.lastIndexOf("\n") + 1;
  return HALF.test(text.slice(start)) ? text.slice(0, start) : text;
}

function scan(lines: readonly string[], open: boolean, depth: number): Located[] {
  const blocks: Located[] = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at]!.trim() === "") {
      at++;
      continue;
    }
    const [block, next] = blockAt(lines, at, open, depth);
    blocks.push([block, at]);
    at = next;
  }
  return blocks;
}

function blockAt(lines: readonly string[], at: number, open: boolean, depth: number): [Block, number] {
  const line = lines[at]!;
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence[1]!, fence[2]!);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1]!.length, text: heading[2]! }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, open, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at, open, depth);
  if (isTable(lines, at, open)) return table(lines, at);
  return paragraph(lines, at);
}

function code(lines: readonly string[], at: number, fence: string, language: string): [Block, number] {
  let end = at + 1;
  const closes = (line: string) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0]!, "") === "";
  while (end < lines.length && !closes(lines[end]!)) end++;
  const closed = end < lines.length;
  const text = lines.slice(at + 1, end).join("\n");
  return [{ kind: "code", language, text, closed }, closed ? end + 1 : end];
}

function quote(lines: readonly string[], at: number, open: boolean, depth: number): [Block, number] {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end]!)) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ kind: "quote", blocks: scan(inner, open && end === lines.length, depth + 1).map(([block]) => block) }, end];
}

function list(lines: readonly string[], at: number, open: boolean, depth: number): [Block, number] {
  const ordered = /\d/.test(ITEM.exec(lines[at]!)![2]!);
  const items: Block[][] = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const marker = ITEM.exec(lines[end]!);
    if (!marker || /\d/.test(marker[2]!) !== ordered || RULE.test(lines[end]!)) break;
    const [inner, next] = item(lines, end, marker);
    items.push(scan(inner, open && next === lines.length, depth + 1).map(([block]) => block));
    loose ||= inner.some((line, index) => line.trim() === "" && index < inner.length - 1);
    end = skipBlank(lines, next);
    if (end > next && end < lines.length && ITEM.test(lines[end]!)) loose = true;
    if (end > next && !(end < lines.length && ITEM.test(lines[end]!))) return [listBlock(lines[at]!, ordered, loose, items), next];
  }
  return [listBlock(lines[at]!, ordered, loose, items), end];
}

function listBlock(first: string, ordered: boolean, loose: boolean, items: Block[][]): Block {
  return { kind: "list", start: ordered ? parseInt(first.trim(), 10) : null, loose, items };
}

/** The lines of one item without its indent, and the line after it. */
function item(lines: readonly string[], at: number, marker: RegExpExecArray): [string[], number] {
  const width = marker[1]!.length + marker[2]!.length + Math.min(marker[3]!.length || 1, 4);
  const inner = [lines[at]!.slice(marker[0].length)];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end]!;
    const indent = line.length - line.trimStart().length;
    if (line.trim() === "") {
      const next = skipBlank(lines, end);
      if (next >= lines.length || lines[next]!.length - lines[next]!.trimStart().length < Math.min(width, 2)) break;
      inner.push("");
    } else if (indent >= Math.min(width, 2)) inner.push(line.slice(Math.min(indent, width)));
    else if (ITEM.test(line) || startsBlock(line) || inner[inner.length - 1] === "") break;
    else inner.push(line);
  }
  return [inner, end];
}

function skipBlank(lines: readonly string[], at: number): number {
  while (at < lines.length && lines[at]!.trim() === "") at++;
  return at;
}

const startsBlock = (line: string) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);

/** While it grows, a line that begins with a bar is taken for a table's head before its second line has come. */
function isTable(lines: readonly string[], at: number, open: boolean): boolean {
  if (!lines[at]!.includes("|")) return false;
  const next = lines[at + 1];
  if (next === undefined || (open && at + 1 === lines.length - 1 && /^[\s|:-]*$/.test(next))) {
    return open && lines[at]!.trimStart().startsWith("|");
  }
  return DELIMITER.test(next) && next.includes("-");
}

function table(lines: readonly string[], at: number): [Block, number] {
  const head = cells(lines[at]!);
  const align = lines[at + 1] === undefined ? [] : cells(lines[at + 1]!).map(alignOf);
  let end = Math.min(at + 2, lines.length);
  const rows: string[][] = [];
  for (; end < lines.length && lines[end]!.trim() !== "" && lines[end]!.includes("|"); end++) {
    const row = cells(lines[end]!);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return [{ kind: "table", head, align, rows }, end];
}

function alignOf(cell: string): Align {
  if (/^:-+:$/.test(cell)) return "center";
  return /^-+:$/.test(cell) ? "right" : null;
}

function cells(line: string): string[] {
  const bare = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function paragraph(lines: readonly string[], at: number): [Block, number] {
  let end = at + 1;
  while (end < lines.length && lines[end]!.trim() !== "" && !startsBlock(lines[end]!) && !ITEM.test(lines[end]!)) end++;
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n") }, end];
}
