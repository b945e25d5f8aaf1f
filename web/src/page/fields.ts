/** Where a message of the server belongs on the page. */
import type { AskError } from "./api";
import { FIELDS } from "./request";

const KNOWN: readonly string[] = [
  ...FIELDS.map(({ name }) => name),
  "sensitivity",
  "vocab_size",
  "text",
  "arguments",
];

/**
 * The id of the field that a mistake is shown beside; null: beside none.
 *
 * `pools[1]` is the row, `pools[1].usd_per_gpu_hour` its price; the server counts rows from 0.
 */
export function fieldOf(error: AskError | null): string | null {
  if (error?.status !== 422 || error.field === null) return null;
  const { field, asks } = error;
  if (asks[0]) return `set-${asks[0]}`;
  if (field === "config" || field === "model") return "model";
  if (field.startsWith("pools[")) return field;
  if (field === "pools" || field === "gpus" || field === "cluster" || field === "price") {
    return "pools";
  }
  const name = field.split(/[.[]/)[0] ?? "";
  return KNOWN.includes(name) ? name : null;
}

/** The id of what is typed into for a field that `fieldOf` named. */
export function inputOf(field: string): string {
  const [, row, part] = /^pools\[(\d+)\](?:\.(\w+))?/.exec(field) ?? [];
  if (row !== undefined) return `pool-${row}-${part === "usd_per_gpu_hour" ? "price" : "type"}`;
  return field === "pools" ? "add-pool" : field;
}
