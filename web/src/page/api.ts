/** Questions to the server, with every way to fail as one kind of error. */
import {
  type ImportDocument,
  OWN_RANK,
  type Plan,
  type PlanDocument,
  planOf,
  type Reviewed,
  type TimelineDocument,
} from "../document";
import type { SweepDocument } from "../schema";
import { HEADERS, type ServerEvent, streamed } from "./events";
import { isObject, type Request } from "./request";

export interface Progress {
  seconds: number;
  phase: string;
  done: number;
  total: number;
}

export interface CatalogGpu {
  name: string;
  aliases: string[];
  memory_gib: number;
  gpus_per_node: number;
  release_year: number;
  usd_per_gpu_hour: number | null;
}

export interface CatalogModel {
  name: string;
  aliases: string[];
  parameters: number | null;
  layers: number | null;
  max_seq_length: number | null;
  family: string;
}

export interface CatalogTarget {
  name: string;
  title: string;
  version: string;
  is_launcher: boolean;
}

export interface Catalog {
  gpus: CatalogGpu[];
  models: CatalogModel[];
  targets: CatalogTarget[];
  runtimes: { name: string; title: string }[];
  clouds: string[];
}

export interface Change {
  name: string;
  first: number | null;
  second: number | null;
  change: number | null;
}

export interface Comparison {
  choices: Record<string, [string, string]>;
  results: Change[];
  time: Change[];
  memory: Change[];
}

export interface Exported {
  software: string;
  files: Record<string, string>;
  command: string;
  where: string;
  needs: string[];
  notes: string[];
  nearest: Nearest | null;
}

export interface Nearest {
  plan: number | null;
  changed: string[];
  iteration_seconds: number;
  slower: number;
}

/** A way out: fields of the request with their new values; "" leaves a field out. */
export interface Repair {
  label: string;
  changes: Readonly<Record<string, string>>;
}

/** What the server says of a mistake. */
interface Told {
  message: string;
  /** Where the mistake is. */
  field: string | null;
  repairs: readonly Repair[];
  /** Variables that a launch script leaves open. */
  asks: readonly string[];
}

/** What the server refuses, or why it could not be asked. */
export class AskError extends Error {
  readonly field: string | null;
  readonly repairs: readonly Repair[];
  readonly asks: readonly string[];

  constructor(
    message: string,
    readonly status: number,
    told: Partial<Told> = {},
    readonly body: Record<string, unknown> = {},
  ) {
    super(message);
    this.field = told.field ?? null;
    this.repairs = told.repairs ?? [];
    this.asks = told.asks ?? [];
  }
}

const UNREACHABLE = 0;

/** Whether the server only shows a saved answer. */
export const IS_SHARED = document.documentElement.hasAttribute("data-shared");

/** Whether it shows a sweep, too. */
export const IS_SWEEP = document.documentElement.hasAttribute("data-sweep");

export interface Chosen {
  document: Reviewed;
  rank: number;
}

export function catalog(): Promise<Catalog> {
  return asked("catalog").then((answer) => answer.json());
}

/** A strategy as if it were an answer to the request. */
export interface Verdict {
  /** Null if the runtime would refuse it. */
  document: PlanDocument | null;
  /** What keeps it from being an answer. */
  broken: string[];
}

export function whyNot(request: Request, strategy: string, signal: AbortSignal): Promise<Verdict> {
  // What would change the answer is not asked of a single strategy.
  const { sensitivity: _, ...asked } = request;
  return json("whynot", { ...asked, strategy }, signal);
}

export function compare(first: Chosen, second: Chosen, signal: AbortSignal): Promise<Comparison> {
  return json("compare", { first: alone(first), second: alone(second) }, signal);
}

export function timeline(chosen: Chosen, signal: AbortSignal): Promise<TimelineDocument> {
  return json("timeline", alone(chosen), signal);
}

export async function trace(chosen: Chosen): Promise<Blob> {
  const { body } = await asked("trace", alone(chosen));
  // Perfetto opens it as it is, and it is a tenth as long.
  return new Response(body?.pipeThrough(new CompressionStream("gzip"))).blob();
}

/** One HTML file with all pictures; `command` is told in it. */
export async function report(chosen: Chosen, command: readonly string[]): Promise<Blob> {
  return (await asked("report", { ...sent(chosen), command }, undefined, "text/html")).blob();
}

export interface SweepAsked {
  rows?: string;
  columns?: string;
  value?: string;
  where?: readonly string[];
  top?: number;
}

/** What the sweep of a server started with `--sweep` found. */
export function sweep(question: SweepAsked, signal: AbortSignal): Promise<SweepDocument> {
  return json("sweep", question, signal);
}

/** The answer that a server started with `--share` shows. */
export function shared(): Promise<PlanDocument> {
  return asked("shared").then((answer) => answer.json());
}

export interface ExportChoice {
  target: string;
  program?: string;
  nearest?: boolean;
}

export async function exportFiles(chosen: Chosen, choice: ExportChoice): Promise<Exported> {
  return json("export", { ...sent(chosen), ...choice });
}

/** By target: over the time of the plan; null if it cannot express it. */
export interface TargetTimes {
  times: Record<string, number | null>;
}

export function targetTimes(chosen: Chosen, signal: AbortSignal): Promise<TargetTimes> {
  return json("targets", alone(chosen), signal);
}

export async function exportZip(chosen: Chosen, choice: ExportChoice): Promise<Blob> {
  const body = { ...sent(chosen), ...choice };
  return (await asked("export", body, undefined, "application/zip")).blob();
}

/** Tells of a search while it runs; ends with its document. */
export async function planned(
  request: Request,
  signal: AbortSignal,
  heard: { progress: (progress: Progress) => void; plans: (document: PlanDocument) => void },
): Promise<PlanDocument> {
  let document: PlanDocument | null = null;
  let problem: AskError | null = null;
  const hear = ({ name, data }: ServerEvent): void => {
    const content = JSON.parse(data);
    if (name === "progress") heard.progress(content);
    else if (name === "plans") heard.plans(content);
    else if (name === "document") document = content;
    else if (name === "error") {
      problem = new AskError(content.message, content.status, content);
    }
  };
  try {
    const ended = await streamed("/api/plan/stream", JSON.stringify(request), signal, hear);
    if (ended.status !== 200) problem = refusal(ended.status, ended.statusText, ended.text);
  } catch (error) {
    // What comes behind the document is only the end.
    if (!document) throw signal.aborted ? error : lost();
  }
  if (document) return document;
  throw problem ?? lost();
}

/** The best plan; null where there is none. */
export async function bestPlan(request: Request, signal: AbortSignal): Promise<Plan | null> {
  const { sensitivity: _, ...asked } = request;
  try {
    const document: PlanDocument = await json("plan", asked, signal);
    return document.plans[0] ?? null;
  } catch (error) {
    if (error instanceof AskError && [409, 422].includes(error.status)) return null;
    throw error;
  }
}

/** What is thought of a launch script, with the plans that would be better. */
export async function reviewed(request: Request, signal: AbortSignal): Promise<Reviewed> {
  const review: ImportDocument = await json("review", request, signal);
  const { workload, cluster, notes, answer, error, conflicts } = review;
  const plan = review.fit?.plan ?? null;
  if (!answer && !plan) throw new AskError([...conflicts, error].join("\n"), 409);
  // Where nothing fits, what was brought is still shown: its memory says why.
  const nothing = { schema: review.schema, workload, cluster, search: null, plans: [], notes };
  return { ...(answer ?? nothing), review };
}

/** As the server knows documents: a launch script of one's own becomes the only plan. */
function sent(chosen: Chosen): Chosen {
  if (chosen.rank === OWN_RANK) {
    const { review, ...document } = chosen.document;
    return alone({
      document: { ...document, plans: review?.fit?.plan ? [review.fit.plan] : [] },
      rank: 1,
    });
  }
  const { review: _, ...document } = chosen.document;
  return { ...chosen, document };
}

/** A document with only the chosen plan, at its place: others would only be sent in vain. */
function alone(chosen: Chosen): Chosen {
  const plan = planOf(chosen.document, chosen.rank);
  const { document } = sent(chosen);
  if (!plan) return { ...chosen, document };
  return { document: { ...document, pareto: [], plans: [{ ...plan, rank: 1 }] }, rank: 1 };
}

async function json<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await asked(path, body, signal)).json();
}

async function asked(
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  accept = "application/json",
): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { ...HEADERS, accept },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    throw signal?.aborted ? error : lost();
  }
  if (answer.ok) return answer;
  throw refusal(answer.status, answer.statusText, await answer.text().catch(() => ""));
}

/** Why the server did not answer, in its own words where it has some. */
function refusal(status: number, statusText: string, text: string): AskError {
  const body = parsed(text);
  const told: Partial<Told> = isObject(body) && isObject(body.error) ? body.error : {};
  const message = told.message ?? `the server answered ${status} ${statusText}`.trim();
  return new AskError(message, status, told, isObject(body) ? body : {});
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function lost(): AskError {
  return new AskError(
    "The server does not answer. Is `astrarium serve` still running? The page tries again.",
    UNREACHABLE,
  );
}

/** Whether asking again later may help. */
export function isPassing(error: AskError): boolean {
  return error.status === UNREACHABLE || error.status === 429 || error.status === 503;
}
