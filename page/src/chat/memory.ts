/** What this browser remembers between visits. Storage may be full, forbidden or absent: then it forgets. */

export function recall<T>(storage: "local" | "session", key: string): T | null {
  try {
    const text = area(storage).getItem(`headrace.${key}`);
    return text === null ? null : (JSON.parse(text) as T);
  } catch {
    return null;
  }
}

export function remember(storage: "local" | "session", key: string, value: unknown): void {
  try {
    if (value === null) area(storage).removeItem(`headrace.${key}`);
    else area(storage).setItem(`headrace.${key}`, JSON.stringify(value));
  } catch {
    // Not remembered.
  }
}

const area = (storage: "local" | "session") => (storage === "local" ? localStorage : sessionStorage);
