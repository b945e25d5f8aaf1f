/**
 * What the page asks: the flags of `astrarium plan`, as typed. All of it is in the link.
 *
 * Values stay texts until the server has read them, so that its messages quote what was typed.
 */
import type { Plan } from "../document";
import example from "./example.json";
import form from "./form.json";

/** A field of the form, by the name of its flag with `_` (src/astrarium/web/form.py). */
export interface FieldText {
  name: string;
  label: string;
  hint?: string;
  placeholder?: string;
  /** Values with what they are called. */
  choices?: readonly (readonly [value: string, text: string])[];
  default?: string;
  /** May be repeated: a line each. */
  lines?: boolean;
}

export const GROUPS = form as unknown as readonly { title: string; fields: FieldText[] }[];
export const FIELDS: readonly FieldText[] = GROUPS.flatMap(({ fields }) => fields);
export const SINGLE_FLAGS = FIELDS.filter(({ lines }) => !lines).map(({ name }) => name);
export const REPEATED_FLAGS = FIELDS.filter(({ lines }) => lines).map(({ name }) => name);

/** What may be said beside a launch script; it states the rest itself. */
const OWN_FLAGS = ["seq_length", "global_batch", "tokens", "vocab_size"] as const;

/** A launch script or configuration of another program. */
export interface OwnText {
  name: string;
  text: string;
  /** What it is called with, and variables that it leaves open: `NAME=VALUE`. */
  arguments: string;
  set: Readonly<Record<string, string>>;
}

export interface Pool {
  /** Tells rows apart while they are edited; not part of the request. */
  id: number;
  type: string;
  count: string;
  price: string;
}

/** The form, as typed. */
export interface Form {
  model: string;
  /** Content of a config.json, in place of `model`; its name is only shown. */
  config: Record<string, unknown> | null;
  configName: string;
  pools: Pool[];
  /** Content of a cluster file, in place of `pools`. */
  cluster: Record<string, unknown> | null;
  /** In place of most of the rest. */
  own: OwnText | null;
  single: Readonly<Record<string, string>>;
  repeated: Readonly<Record<string, string>>;
  sensitivity: boolean;
}

export type Request = Record<string, unknown>;

let lastId = 0;

export function newPool(type = "", count = "", price = ""): Pool {
  lastId += 1;
  return { id: lastId, type, count, price };
}

/** The example that the page opens with. */
export function exampleForm(): Form {
  return formOf(example);
}

/** Lines of a text, without empty ones. */
export function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** Whether all GPUs are those that clouds offer: more than anybody rents. */
export function isMarketAlone(form: Form): boolean {
  const isAsked = Boolean(form.single.market?.trim());
  return isAsked && form.pools.length === 0 && form.cluster === null;
}

/** The request; what was left empty is left out. */
export function requestOf(form: Form): Request {
  if (form.own) return reviewOf(form, form.own);
  const request: Request = {};
  if (form.config) request.config = form.config;
  else if (form.model.trim() !== "") request.model = form.model.trim();
  if (form.cluster) request.cluster = form.cluster;
  else if (!isMarketAlone(form)) {
    request.pools = form.pools.map(poolRow);
  }
  for (const flag of SINGLE_FLAGS) {
    const text = form.single[flag]?.trim() ?? "";
    if (text !== "") request[flag] = text;
  }
  for (const flag of REPEATED_FLAGS) {
    const found = lines(form.repeated[flag] ?? "");
    if (found.length > 0) request[flag] = found;
  }
  if (form.sensitivity) request.sensitivity = true;
  return request;
}

/** The question about a launch script. */
function reviewOf(form: Form, own: OwnText): Request {
  const request: Request = { text: own.text, name: own.name };
  if (form.config) request.config = form.config;
  else if (form.model.trim() !== "") request.model = form.model.trim();
  const rows = form.pools.map(poolRow).filter((row) => row.type !== "");
  // A script knows how many: the type alone is enough.
  const gpus = rows.map(({ type, count }) => (count ? `${type}:${count}` : type));
  if (gpus.length > 0) request.gpus = gpus.join(",");
  const prices = rows.flatMap(({ type, usd_per_gpu_hour: usd }) => (usd ? [`${type}=${usd}`] : []));
  if (prices.length > 0) request.price = prices;
  for (const flag of OWN_FLAGS) {
    const text = form.single[flag]?.trim() ?? "";
    if (text !== "") request[flag] = text;
  }
  const set = Object.entries(own.set).filter(([, value]) => value !== "");
  if (set.length > 0) request.set = set.map(([name, value]) => `${name}=${value}`);
  const words = own.arguments.split(/\s+/).filter((word) => word !== "");
  if (words.length > 0) request.arguments = words;
  return request;
}

/** The form of a script that is brought: what it states is not asked for. */
export function ownForm(name: string, text: string, before: Form): Form {
  return {
    ...formOf({ text, name }),
    pools: [newPool(before.pools[0]?.type || "h100")],
  };
}

function ownOf(request: Request): OwnText | null {
  if (typeof request.text !== "string") return null;
  return {
    text: request.text,
    name: word(request.name) || "pasted",
    arguments: texts(request.arguments).join(" "),
    set: Object.fromEntries(texts(request.set).map((text) => pair(text, "="))),
  };
}

function poolRow(pool: Pool): Record<string, string> {
  const row = { type: pool.type.trim(), count: pool.count.trim() };
  const price = pool.price.trim();
  return price === "" ? row : { ...row, usd_per_gpu_hour: price };
}

/** The form of a request; links of older or hand-made requests may say `gpus` and `price`. */
export function formOf(request: Request): Form {
  const single: Record<string, string> = {};
  for (const flag of [...SINGLE_FLAGS, "vocab_size"]) {
    const value = request[flag];
    if (isAmount(value)) single[flag] = String(value);
  }
  const repeated: Record<string, string> = {};
  for (const flag of REPEATED_FLAGS) {
    const found = texts(request[flag]);
    if (found.length > 0) repeated[flag] = found.join("\n");
  }
  const config = isObject(request.config) ? request.config : null;
  return {
    model: isAmount(request.model) ? String(request.model) : "",
    config,
    configName: config ? "config.json" : "",
    pools: poolsOf(request),
    cluster: isObject(request.cluster) ? request.cluster : null,
    own: ownOf(request),
    single,
    repeated,
    sensitivity: request.sensitivity === true,
  };
}

/** Flags of a question that the form has no field for. */
export function unasked(question: Request): string[] {
  const request = requestOf(formOf(question));
  const isHeld = (flag: string): boolean => flag in request || ["gpus", "price"].includes(flag);
  return Object.keys(question).filter((flag) => !isHeld(flag));
}

export function poolsOf(request: Request): Pool[] {
  if (Array.isArray(request.pools)) {
    return request.pools
      .filter(isObject)
      .map((row) => newPool(word(row.type), word(row.count), word(row.usd_per_gpu_hour)));
  }
  const prices = new Map(texts(request.price).map((text) => pair(text, "=")));
  return (isAmount(request.gpus) ? String(request.gpus) : "")
    .split(",")
    .filter((entry) => entry.trim() !== "")
    .map((entry) => {
      const [type, count] = pair(entry, ":");
      return newPool(type, count, prices.get(type) ?? "");
    });
}

/** What says which GPUs there are to choose from, and how they are paid for. */
const CHOICE_FLAGS = ["market", "region", "discount", "max_gpus", "mix", "spot", "interruptions"];

/** Whether the search chooses the GPUs, out of a market or of those there are. */
export function choosesGpus(request: Request): boolean {
  return request.cluster === undefined && ("market" in request || request.mode === "up-to");
}

/** The same on just the GPUs of a plan, at its price, where the search chose them. */
export function onGpusOf(plan: Plan, request: Request): Request {
  if (!choosesGpus(request)) return request;
  const types = Object.entries(plan.gpus).filter(([, count]) => count > 0);
  const gpus = types.reduce((sum, [, count]) => sum + count, 0);
  const price = plan.usd_per_hour === null ? {} : { usd_per_gpu_hour: plan.usd_per_hour / gpus };
  const kept = Object.entries(request).filter(([flag]) => !CHOICE_FLAGS.includes(flag));
  return {
    ...Object.fromEntries(kept),
    mode: "exact",
    pools: types.map(([type, count]) => ({ type, count, ...price })),
  };
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isAmount(value: unknown): value is string | number {
  return typeof value === "string" || typeof value === "number";
}

function word(value: unknown): string {
  return isAmount(value) ? String(value) : "";
}

function texts(value: unknown): string[] {
  if (isAmount(value)) return [String(value)];
  return Array.isArray(value) ? value.filter(isAmount).map(String) : [];
}

function pair(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark);
  return at < 0 ? [text.trim(), ""] : [text.slice(0, at).trim(), text.slice(at + 1).trim()];
}
