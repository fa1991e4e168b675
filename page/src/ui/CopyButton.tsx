import { useState } from "preact/hooks";

/** Copies `text`; says so for a moment. */
export function CopyButton({ text, what }: { text: string; what: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await toClipboard(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1_500);
  };
  return (
    <button type="button" class="quiet" onClick={() => void copy()} aria-label={`${copied ? "Copied" : "Copy"} ${what}`}>
      {copied ? "Copied" : "Copy"}
    </button>
  );
}

/** The clipboard API exists on secure origins only; a page on http://some-host must do without. */
async function toClipboard(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
