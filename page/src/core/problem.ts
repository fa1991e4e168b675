/** An error the server explained (RFC 9457). `code` is stable, `hint` says what to do. */
export class Problem extends Error {
  override readonly name = "Problem";

  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
  }
}

/** The problem in `response`, also when its body is not problem+json (a proxy's page, say). */
export async function problemOf(response: Response): Promise<Problem> {
  let body: { [key: string]: unknown } = {};
  try {
    body = await response.json();
  } catch {
    // Not JSON: the status line is all there is.
  }
  const text = (key: string) => (typeof body[key] === "string" ? (body[key] as string) : null);
  const message = text("detail") ?? text("title") ?? `The server answered ${response.status}.`;
  return new Problem(response.status, text("code") ?? `http_${response.status}`, message, text("hint"));
}
