/**
 * Bytes in, frames out. No I/O.
 *
 * Lines end with LF, CRLF or CR and with nothing else: U+2028 is text (JSON may hold it raw). A chunk may end
 * anywhere, also inside a character or between CR and LF. A comment is not a frame: whoever watches the link
 * counts bytes, which it has seen before they came here.
 */

export interface Frame {
  /** The `id:` line of this frame, or null. */
  readonly id: string | null;
  readonly event: string;
  readonly data: string;
}

export class SseParser {
  /** What the server's last `retry:` line asked for, in milliseconds. */
  retryMs: number | null = null;

  private readonly decoder = new TextDecoder("utf-8");
  private rest = "";
  private id: string | null = null;
  private event = "";
  private data: string[] = [];

  /** The frames that `bytes` complete. */
  feed(bytes: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    const text = this.rest + this.decoder.decode(bytes, { stream: true });
    let start = 0;
    for (;;) {
      const end = lineEnd(text, start);
      if (end === -1) break;
      // A CR that ends the chunk may be half a CRLF: wait for the next byte.
      if (text[end] === "\r" && end === text.length - 1) break;
      this.line(text.slice(start, end), frames);
      start = end + (text[end] === "\r" && text[end + 1] === "\n" ? 2 : 1);
    }
    this.rest = text.slice(start);
    return frames;
  }

  private line(line: string, frames: Frame[]): void {
    if (line === "") return this.dispatch(frames);
    if (line.startsWith(":")) return;
    const colon = line.indexOf(":");
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    this.field(field, value);
  }

  private field(field: string, value: string): void {
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id") this.id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
  }

  private dispatch(frames: Frame[]): void {
    if (this.data.length > 0) {
      frames.push({ id: this.id, event: this.event || "message", data: this.data.join("\n") });
    }
    this.id = null;
    this.event = "";
    this.data = [];
  }
}

function lineEnd(text: string, from: number): number {
  const lf = text.indexOf("\n", from);
  const cr = text.indexOf("\r", from);
  if (lf === -1) return cr;
  return cr === -1 ? lf : Math.min(lf, cr);
}
