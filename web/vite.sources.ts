/** The hash of all that the built page depends on. */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Files and folders of this folder that a build reads. */
const READ = ["index.html", "package-lock.json", "public", "src"];
const CONFIGS = /^(vite\.|tsconfig|package\.json)/;

/**
 * SHA-256 over `path NUL length NUL content` of every file, in the order of the paths; lines end
 * as in the repository on every system.
 */
export function digestOfSources(folder: string): string {
  const names = readdirSync(folder).filter((name) => READ.includes(name) || CONFIGS.test(name));
  const files = names.flatMap((name) => filesOf(folder, name)).sort();
  const hash = createHash("sha256");
  for (const path of files) {
    const content = readFileSync(join(folder, path), "utf8").replaceAll("\r\n", "\n");
    hash.update(`${path}\0${Buffer.byteLength(content)}\0${content}`);
  }
  return hash.digest("hex");
}

function filesOf(folder: string, name: string): string[] {
  const entries = readdirSync(folder, { withFileTypes: true });
  const entry = entries.find((one) => one.name === name);
  if (!entry?.isDirectory()) return [name];
  return readdirSync(join(folder, name)).flatMap((child) =>
    filesOf(join(folder, name), child).map((path) => `${name}/${path}`),
  );
}
