/** The page: index.html with hashed assets, into the Python package. */
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { digestOfSources } from "./vite.sources.ts";

const STATIC = "../src/astrarium/web/static";

/** Beside the assets: of which sources they were built, so that a test can tell old ones. */
function stampedWithSources(): Plugin {
  let folder = "";
  return {
    name: "sources",
    apply: "build",
    configResolved(config) {
      folder = resolve(config.root, config.build.outDir);
    },
    closeBundle() {
      const stamp = { sources: digestOfSources(import.meta.dirname) };
      writeFileSync(join(folder, "build.json"), `${JSON.stringify(stamp)}\n`);
    },
  };
}

export default defineConfig({
  plugins: [stampedWithSources()],
  build: {
    outDir: STATIC,
    emptyOutDir: true,
    target: "es2022",
    reportCompressedSize: true,
    // Inlined assets would need a looser policy for contents than the server's.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: {
    // `astrarium serve` answers while the page is developed.
    proxy: { "/api": "http://127.0.0.1:8000" },
  },
  test: {
    include: ["tests/**/*.test.{ts,tsx}"],
    environment: "happy-dom",
  },
});
