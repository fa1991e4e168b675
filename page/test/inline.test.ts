import { describe, expect, test } from "vitest";
import { highlight } from "../src/text/highlight";
import { inline, type Inline } from "../src/text/inline";

/** The tree as a short text: **b** → <strong b>. */
function shown(parts: readonly Inline[]): string {
  return parts
    .map((part) => {
      if (typeof part === "string") return part;
      if (part.kind === "code") return `<code ${part.text}>`;
      if (part.kind === "cite") return `<cite ${part.number}>`;
      if (part.kind === "break") return "<br>";
      if (part.kind === "link") return `<a ${part.href} ${shown(part.inner)}>`;
      return `<${part.kind} ${shown(part.inner)}>`;
    })
    .join("");
}

const closed = (text: string) => shown(inline(text));
const open = (text: string) => shown(inline(text, true));

describe("inline text", () => {
  test.each([
    ["a **b *c* d** e", "a <strong b <em c> d> e"],
    ["`a * b` and ``c ` d``", "<code a * b> and <code c ` d>"],
    ["2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"],
    ["~~old~~ ~kept~", "<del old> ~kept~"],
    ["see [the *docs*](https://a.b/c_d) now", "see <a https://a.b/c_d the <em docs>> now"],
    ["https://a.b/c, and <https://d.e>", "<a https://a.b/c https://a.b/c>, and <a https://d.e https://d.e>"],
    ["it is so [1] and [2, 3] and [^4].", "it is so <cite 1> and <cite 2><cite 3> and <cite 4>."],
    ["\\*not\\* \\[1\\]", "*not* [1]"],
    ["two  \nlines", "two<br>lines"],
    ["soft\nbreak", "soft break"],
    ["中文\n换行，**重点**。", "中文换行，<strong 重点>。"],
    ["链接https://a.b/c。后面", "链接<a https://a.b/c https://a.b/c>。后面"],
    ["** not bold**", "** not bold**"],
    ["**unfinished", "**unfinished"],
  ])("%j", (text, expected) => expect(closed(text)).toBe(expected));

  test.each([
    ["**unfinished", "<strong unfinished>"],
    ["**unfinished*", "<strong unfinished>"],
    ["a `code", "a <code code>"],
    ["a *", "a "],
    ["a **", "a "],
    ["see [the docs](https://a.", "see the docs"],
    ["so it is [1", "so it is "],
  ])("while it grows: %j", (text, expected) => expect(open(text)).toBe(expected));

  test("a link goes to the web or to mail, or is no link", () => {
    for (const url of ["javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "vbscript:x", "//evil", "file:///etc"]) {
      expect(closed(`[x](${url})`)).toBe("x");
    }
    expect(closed("[x](mailto:a@b.c)")).toBe("<a mailto:a@b.c x>");
  });

  test("a picture is a link, for a picture would be a request to a stranger", () => {
    expect(closed("![alt](https://a.b/c.png)")).toBe("<a https://a.b/c.png alt>");
  });

  test("markup is text", () => {
    expect(closed("<img src=x onerror=alert(1)><script>")).toBe("<img src=x onerror=alert(1)><script>");
  });

  test("stays quick on hostile input", () => {
    for (const piece of ["*", "**a ", "_a ", "[", "`", "``` `` ", "![", "[a](", "<", "~~x "]) {
      expect(inline(piece.repeat(8_000)).length).toBeGreaterThan(0);
      expect(inline(piece.repeat(8_000), true).length).toBeGreaterThanOrEqual(0);
    }
  }, 4_000);
});

describe("highlighting", () => {
  test("loses no character of any language", () => {
    const code = 'def f(x: int) -> str:  # why\n    return f"{x}" + \'a\\\'b\' // 0x1F /* c */ `t` -- sql\n"unclosed';
    for (const language of ["python", "ts", "json", "bash", "toml", "rust", "go", "c", "sql", "css", "nothing"]) {
      expect(highlight(code, language).map(([, text]) => text).join("")).toBe(code);
    }
  });

  test("tells words, strings, comments, numbers and calls apart", () => {
    expect(highlight('if go(1): # x\n  "s"', "python").filter(([kind]) => kind)).toEqual([
      ["keyword", "if"], ["name", "go"], ["number", "1"], ["comment", "# x"], ["string", '"s"'],
    ]);
  });
});
