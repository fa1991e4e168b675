/** Deterministic pseudo-random numbers in [0, 1). */
export function seeded(seed: number): () => number {
  let x = seed;
  return () => (x = (x * 1103515245 + 12345) % 2147483648) / 2147483648;
}
