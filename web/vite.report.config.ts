/**
 * The script of a report: one classic script without imports, so that it can be embedded in a
 * file that is opened from disk. Its styles are a file beside it, so that
 * the tables of a report have them where no script runs.
 */
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/astrarium/web/static",
    // Built after the page, next to it.
    emptyOutDir: false,
    copyPublicDir: false,
    target: "es2022",
    lib: {
      entry: "src/report.ts",
      formats: ["iife"],
      name: "astrariumReport",
      fileName: () => "report.js",
      cssFileName: "report",
    },
  },
});
