import { defineConfig } from "vitest/config";

// The page is served from any path (relative base) under `Content-Security-Policy: default-src 'self'`,
// so nothing may be inlined. One script and one style sheet: a page this small gains nothing from more requests.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/headrace/http/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8321" } },
  test: { include: ["test/**/*.test.ts"], environment: "node", testTimeout: 30_000 },
});
