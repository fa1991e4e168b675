import { describe, expect, test } from "vitest";
import { type Block, BlockReader, parse } from "../src/text/blocks";
import { seeded } from "./seeded";

const TEXT = `# Title

A paragraph with **bold**,
over two lines.

- one
- two
  with more

  and a second paragraph
- three
  1. nested
  2. list

\`\`\`python
def f():

    return "# not a heading"
\`\`\`

> quoted
> - list inside

| a | b |
|---|--:|
| 1 | 2 |
| \`x\\|y\` | 4 |

***

3. starts at three
4. goes on

中文段落，
换行。`;

describe("blocks", () => {
  test("are read as Markdown means them", () => {
    expect(parse(TEXT).map((block) => block.kind)).toEqual([
      "heading", "paragraph", "list", "code", "quote", "table", "rule", "list", "paragraph",
    ]);
    const [, , list, code, , table, , ordered] = parse(TEXT) as any[];
    expect(list.items.length).toBe(3);
    expect(list.items[2][1]).toMatchObject({ kind: "list", start: 1 });
    expect(code).toEqual({ kind: "code", language: "python", text: 'def f():\n\n    return "# not a heading"', closed: true });
    expect(table).toMatchObject({ head: ["a", "b"], align: [null, "right"], rows: [["1", "2"], ["`x|y`", "4"]] });
    expect(ordered).toMatchObject({ start: 3, loose: false });
  });

  test("of a text that grew in 100 random ways equal those of the whole text", () => {
    for (let seed = 1; seed <= 100; seed++) {
      const random = seeded(seed);
      const reader = new BlockReader();
      for (let end = 0; end < TEXT.length; end += 1 + Math.floor(random() * 12)) reader.read(TEXT.slice(0, end), true);
      expect(reader.read(TEXT, false)).toEqual(parse(TEXT));
    }
  });

  test("keep their identity once they are settled, and are not read again", () => {
    const reader = new BlockReader();
    let before: readonly Block[] = [];
    for (let end = 0; end <= TEXT.length; end++) {
      const now = reader.read(TEXT.slice(0, end), true);
      const settled = before.slice(0, -2);
      expect(now.slice(0, settled.length).every((block, index) => block === settled[index])).toBe(true);
      before = now;
    }
  });

  test("never show a marker that the next character may complete", () => {
    const halves = ["text\n\n#", "text\n\n##", "text\n-", "text\n\n1", "text\n\n``", "text\n\n>", "text\n\n**"];
    for (const half of halves) expect(new BlockReader().read(half, true)).toEqual([{ kind: "paragraph", text: half.startsWith("text\n-") ? "text\n" : "text" }].map(trimmed));
    expect(new BlockReader().read("| a | b", true)).toEqual([]);
    expect(new BlockReader().read("| a | b |\n", true)).toMatchObject([{ kind: "table", head: ["a", "b"] }]);
  });

  test("begin again when the text was retracted", () => {
    const reader = new BlockReader();
    reader.read("# One\n\nTwo\n\nThree\n\n", true);
    expect(reader.read("# Other", false)).toEqual([{ kind: "heading", level: 1, text: "Other" }]);
  });

  test("stay quick on hostile input", () => {
    const hostile = ["> ".repeat(3000) + "x", "- ".repeat(3000), "|".repeat(20_000) + "\n", "#".repeat(20_000), "* ".repeat(5000)];
    for (const text of hostile) expect(parse(text).length).toBeGreaterThan(0);
  });
});

const trimmed = (block: { kind: string; text: string }) => ({ ...block, text: block.text.trimEnd() });
