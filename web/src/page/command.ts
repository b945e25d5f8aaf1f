/** The command line that asks the same as the page. */
import { FIELDS, isObject, REPEATED_FLAGS, type Request, SINGLE_FLAGS } from "./request";

const DEFAULTS = new Map(FIELDS.map(({ name, default: value }) => [name, value]));

/** One line. */
export function commandOf(request: Request, configName?: string): string {
  return wordsOf(request, configName).map(quoted).join(" ");
}

/** Its words; what is the default anyway is left out. */
export function wordsOf(request: Request, configName = "config.json"): string[] {
  if (typeof request.text === "string") return explainOf(request, configName);
  const model = request.config ? configName || "config.json" : String(request.model ?? "MODEL");
  const words = ["astrarium", "plan", model];
  const rows = (Array.isArray(request.pools) ? request.pools : []).filter(isObject);
  if (request.cluster) words.push("--cluster", "cluster.yaml");
  else if (rows.length > 0) {
    words.push("--gpus", rows.map((row) => `${row.type}:${row.count}`).join(","));
  }
  for (const row of rows) {
    if (row.usd_per_gpu_hour === undefined) continue;
    words.push("--price", `${row.type}=${row.usd_per_gpu_hour}`);
  }
  for (const flag of SINGLE_FLAGS) {
    const value = request[flag];
    if (value === undefined || String(value) === DEFAULTS.get(flag)) continue;
    words.push(...option(flag, String(value)));
  }
  for (const flag of REPEATED_FLAGS) {
    for (const value of (request[flag] as unknown[] | undefined) ?? []) {
      words.push(...option(flag, String(value)));
    }
  }
  if (request.sensitivity) words.push("--sensitivity");
  return words;
}

function explainOf(request: Request, configName: string): string[] {
  const words = ["astrarium", "explain", String(request.name)];
  words.push(...((request.arguments as string[] | undefined) ?? []));
  const { text: _, name: __, arguments: ___, config, ...flags } = request;
  for (const [flag, value] of Object.entries({
    ...flags,
    ...(config ? { model: configName } : {}),
  })) {
    for (const one of Array.isArray(value) ? value : [value])
      words.push(...option(flag, String(one)));
  }
  return words;
}

/** A command line, cut before its options: where it may be broken. */
export function optionsOf(command: string): string[] {
  return command.split(/ (?=--[a-z])/);
}

function option(flag: string, value: string): string[] {
  const name = `--${flag.replaceAll("_", "-")}`;
  // A value that begins with a dash would be read as the next option.
  return value.startsWith("-") ? [`${name}=${value}`] : [name, value];
}

/** As a POSIX shell needs it. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
