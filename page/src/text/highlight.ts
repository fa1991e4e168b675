/** Colour for finished code. Words, strings, comments and numbers are enough to read by; it is not a parser. */

export type Token = readonly [kind: "" | "keyword" | "string" | "comment" | "number" | "name", text: string];

const MAX_LENGTH = 50_000;

const PYTHON =
  "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match None nonlocal not or pass raise return True False try while with yield";
const SCRIPT =
  "abstract as async await break case catch class const continue default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null of private public readonly return static super switch this throw true try type typeof undefined var void while yield";
const RUST =
  "as async await break const continue dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self static struct super trait true type unsafe use where while";
const GO =
  "break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var";
const C = "auto bool break case char class const continue default do double else enum extern false float for if int long namespace new nullptr private public return short signed sizeof static struct switch template this true typedef union unsigned using virtual void volatile while";
const SHELL = "case do done elif else esac export fi for function if in local return set source then unset until while";
const SQL =
  "select from where and or not insert into values update set delete create table index drop alter join left right inner outer on group by order limit as distinct null is in like between union all primary key foreign references default";

interface Language {
  readonly words: ReadonlySet<string>;
  readonly pattern: RegExp;
  readonly folded: boolean;
}

const STRINGS = String.raw`"""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\x60(?:\\.|[^\x60\\])*\x60`;
const NUMBER = String.raw`\b(?:0x[\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b`;
const WORD = String.raw`[A-Za-z_][\w]*`;

function language(words: string, comment: string, folded = false): Language {
  const pattern = new RegExp(`(${comment})|(${STRINGS})|(${NUMBER})|(${WORD})(?=(\\s*\\()?)`, "g");
  return { words: new Set(words.split(" ")), pattern, folded };
}

const HASH = String.raw`#[^\n]*`;
const SLASHES = String.raw`\/\/[^\n]*|\/\*[\s\S]*?\*\/`;

const PY = language(PYTHON, HASH);
const JS = language(SCRIPT, SLASHES);
const SH = language(SHELL, String.raw`(?<=^|\s)#[^\n]*`);
const DATA = language("true false null yes no on off", HASH);
const LANGUAGES: { readonly [name: string]: Language } = {
  python: PY,
  py: PY,
  pycon: PY,
  javascript: JS,
  js: JS,
  jsx: JS,
  typescript: JS,
  ts: JS,
  tsx: JS,
  json: language("true false null", SLASHES),
  bash: SH,
  sh: SH,
  shell: SH,
  console: SH,
  toml: DATA,
  yaml: DATA,
  yml: DATA,
  ini: DATA,
  rust: language(RUST, SLASHES),
  rs: language(RUST, SLASHES),
  go: language(GO, SLASHES),
  c: language(C, SLASHES),
  cpp: language(C, SLASHES),
  java: language(`${SCRIPT} int long double float char boolean package throws final`, SLASHES),
  sql: language(SQL, String.raw`--[^\n]*`, true),
  css: language("", String.raw`\/\*[\s\S]*?\*\/`),
};

/** The tokens of `code`; one plain token when the language is not known or the code is very long. */
export function highlight(code: string, name: string): Token[] {
  const known = LANGUAGES[name.toLowerCase()];
  if (!known || code.length > MAX_LENGTH) return [["", code]];
  const tokens: Token[] = [];
  let end = 0;
  for (const match of code.matchAll(known.pattern)) {
    if (match.index > end) tokens.push(["", code.slice(end, match.index)]);
    tokens.push([kindOf(match, known), match[0]]);
    end = match.index + match[0].length;
  }
  tokens.push(["", code.slice(end)]);
  return tokens;
}

function kindOf(match: RegExpExecArray, known: Language): Token[0] {
  const [, comment, string, number, word, call] = match;
  if (comment !== undefined) return "comment";
  if (string !== undefined) return "string";
  if (number !== undefined) return "number";
  if (known.words.has(known.folded ? word!.toLowerCase() : word!)) return "keyword";
  return call !== undefined ? "name" : "";
}
