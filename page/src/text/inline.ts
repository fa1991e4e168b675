/**
 * The inside of a block: emphasis, code, links, citations. Text in, a small tree out; nothing here can become markup
 * by itself, so there is nothing to sanitise later but a link's scheme, which is checked here.
 *
 * `open` is set for the end of a growing text: an unfinished marker is taken as closed at the end, a lone one held back.
 */

export type Inline =
  | string
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "strong" | "em" | "del"; readonly inner: readonly Inline[] }
  | { readonly kind: "link"; readonly href: string; readonly inner: readonly Inline[] }
  | { readonly kind: "cite"; readonly number: number }
  | { readonly kind: "break" };

const NEXT = /[\\`*_~[!<\n]|https?:\/\//g;
const URL_AT = /https?:\/\/[^\s<>"')\]}，。；、！？）】]*[^\s<>"')\]}，。；、！？）】.,;:!?]/y;
const LINK = /\[((?:[^[\]\\\n]|\\.|\[[^[\]\n]*\])*)\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
const HALF_LINK = /\[((?:[^[\]\\\n]|\\.)*)(?:\](?:\([^)\n]*)?)?$/y;
const CITE = /\[\^?(\d{1,2}(?:\s*[,，、]\s*\d{1,2})*)\]/y;
const CJK = /[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]/;
const MAX_DEPTH = 8;

/** Links may go to the web and to mail; anything else (javascript:, data:) stays text. */
export function safeHref(url: string): string | null {
  return /^(https?:\/\/|mailto:)/i.test(url) ? url : null;
}

export function inline(source: string, open = false, depth = 0): Inline[] {
  return new Scanner(source, open, depth).scan();
}

class Scanner {
  private readonly out: Inline[] = [];
  private at = 0;
  /** Markers that have no partner further on: looked for once, so that a thousand stars stay linear. */
  private readonly lonely = new Set<string>();

  constructor(
    private readonly source: string,
    private readonly open: boolean,
    private readonly depth: number,
  ) {}

  scan(): Inline[] {
    while (this.at < this.source.length) {
      NEXT.lastIndex = this.at;
      const next = NEXT.exec(this.source);
      this.text(this.source.slice(this.at, next ? next.index : undefined));
      if (!next) break;
      this.at = next.index;
      this.special(next[0]);
    }
    return this.out;
  }

  private special(found: string): void {
    if (found === "\\") return this.escape();
    if (found === "\n") return this.newline();
    if (found === "`") return this.code();
    if (found === "*" || found === "_" || found === "~") return this.emphasis(found);
    if (found.startsWith("http")) return this.bareUrl();
    if (found === "<") return this.angle();
    return this.bracket(found);
  }

  private text(text: string): void {
    if (text === "") return;
    const last = this.out.length - 1;
    if (typeof this.out[last] === "string") this.out[last] += text;
    else this.out.push(text);
  }

  /** Takes `length` characters of the source as text. */
  private literal(length: number): void {
    this.text(this.source.slice(this.at, this.at + length));
    this.at += length;
  }

  private escape(): void {
    const next = this.source[this.at + 1];
    if (next === "\n") {
      this.out.push({ kind: "break" });
      this.at += 2;
    } else if (next !== undefined && /[!-/:-@[-`{-~]/.test(next)) {
      this.text(next);
      this.at += 2;
    } else this.literal(1);
  }

  private newline(): void {
    const before = this.source.slice(0, this.at);
    const after = this.source[this.at + 1] ?? "";
    const last = this.out.length - 1;
    if (before.endsWith("  ")) {
      if (typeof this.out[last] === "string") this.out[last] = (this.out[last] as string).trimEnd();
      this.out.push({ kind: "break" });
    } else if (!(CJK.test(before.slice(-1)) && CJK.test(after))) this.text(" ");
    this.at += 1;
  }

  private code(): void {
    const run = /`+/y;
    run.lastIndex = this.at;
    const ticks = run.exec(this.source)![0];
    const start = this.at + ticks.length;
    const end = this.closer(ticks, start, (index) => this.source[index - 1] !== "`" && this.source[index + ticks.length] !== "`");
    if (end === -1 && !this.open) return this.literal(ticks.length);
    const text = this.source.slice(start, end === -1 ? undefined : end);
    if (text.trim() !== "") this.out.push({ kind: "code", text: text.replaceAll("\n", " ").replace(/^ (.+) $/, "$1") });
    this.at = end === -1 ? this.source.length : end + ticks.length;
  }

  private emphasis(char: string): void {
    const double = this.source[this.at + 1] === char;
    if (char === "~" && !double) return this.literal(1);
    const marker = double ? char + char : char;
    const start = this.at + marker.length;
    if (this.open && start >= this.source.length) return void (this.at = start);
    if (!this.opens(char, start)) return this.literal(marker.length);
    const end = this.closer(marker, start + 1, (index) => this.closes(char, index, marker.length));
    if (end === -1 && !this.open) return this.literal(marker.length);
    this.nest(char === "~" ? "del" : double ? "strong" : "em", start, end);
    this.at = end === -1 ? this.source.length : end + marker.length;
  }

  private nest(kind: "strong" | "em" | "del", start: number, end: number): void {
    const inner = this.source.slice(start, end === -1 ? undefined : end);
    this.out.push({ kind, inner: inline(end === -1 ? inner.replace(/[*_~]+$/, "") : inner, end === -1, this.depth + 1) });
  }

  private opens(char: string, start: number): boolean {
    const next = this.source[start];
    if (this.depth >= MAX_DEPTH || next === undefined || /\s/.test(next)) return false;
    return char !== "_" || !/\w/.test(this.source[this.at - 1] ?? " ");
  }

  private closes(char: string, index: number, length: number): boolean {
    if (/\s/.test(this.source[index - 1]!)) return false;
    const after = this.source[index + length] ?? " ";
    if (length === 1 && (after === char || this.source[index - 1] === char)) return false;
    return char !== "_" || !/\w/.test(after);
  }

  /** Where `marker` ends what began before `from`, or -1. */
  private closer(marker: string, from: number, fits: (index: number) => boolean): number {
    if (this.lonely.has(marker)) return -1;
    for (let index = this.source.indexOf(marker, from); index !== -1; index = this.source.indexOf(marker, index + 1)) {
      if (fits(index)) return index;
    }
    this.lonely.add(marker);
    return -1;
  }

  private bareUrl(): void {
    URL_AT.lastIndex = this.at;
    const url = URL_AT.exec(this.source)?.[0];
    if (!url) return this.literal(4);
    this.out.push({ kind: "link", href: url, inner: [url] });
    this.at += url.length;
  }

  private angle(): void {
    const end = this.source.indexOf(">", this.at);
    const href = end === -1 ? null : safeHref(this.source.slice(this.at + 1, end));
    if (href === null || /\s/.test(href)) return this.literal(1);
    this.out.push({ kind: "link", href, inner: [href] });
    this.at = end + 1;
  }

  /** `[text](url)`, `![alt](url)` (as a link: a picture would be a request to a stranger), `[1]`. */
  private bracket(found: string): void {
    const start = found === "!" ? this.at + 1 : this.at;
    if (this.source[start] !== "[") return this.literal(1);
    if (this.cite(start) || this.link(start) || (this.open && this.halfLink(start))) return;
    this.literal(1);
  }

  private cite(start: number): boolean {
    CITE.lastIndex = start;
    const match = CITE.exec(this.source);
    if (!match || this.source[start + match[0].length] === "(") return false;
    for (const number of match[1]!.split(/[,，、]/)) this.out.push({ kind: "cite", number: Number(number) });
    this.at = start + match[0].length;
    return true;
  }

  private link(start: number): boolean {
    LINK.lastIndex = start;
    const match = LINK.exec(this.source);
    if (!match) return false;
    const href = safeHref(match[2]!);
    const inner = this.depth < MAX_DEPTH ? inline(match[1]!, false, this.depth + 1) : [match[1]!];
    if (href === null) this.out.push(...inner);
    else this.out.push({ kind: "link", href, inner: inner.filter((part) => typeof part === "string" || part.kind !== "link") });
    this.at = start + match[0].length;
    return true;
  }

  private halfLink(start: number): boolean {
    HALF_LINK.lastIndex = start;
    const match = HALF_LINK.exec(this.source);
    if (!match) return false;
    if (!/^\^?[\d\s,]*$/.test(match[1]!)) this.text(match[1]!);
    this.at = this.source.length;
    return true;
  }
}
