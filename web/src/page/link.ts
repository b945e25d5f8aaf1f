/** The state of the page in the address: `#` and the request as compact JSON in base64url. */
import { isObject, type Request } from "./request";

/** What is looked at; beside the request, and never sent with it. */
export interface View {
  /** The chosen plan; 1 is the best. */
  rank: number;
  /** Plans that are compared: at most two. */
  compare: number[];
  /** A strategy of the user's own. */
  strategy: string;
}

export const FIRST_VIEW: View = { rank: 1, compare: [], strategy: "" };

export function hashOf(request: Request, view: View = FIRST_VIEW): string {
  const shown = viewOf(view);
  const state = Object.keys(shown).length > 0 ? { ...request, view: shown } : request;
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return `#${btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** Null if the address has no state, or one that cannot be read. */
export function stateOf(hash: string): { request: Request; view: View } | null {
  const text = hash.replace(/^#/, "").replaceAll("-", "+").replaceAll("_", "/");
  if (text === "") return null;
  try {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const state: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    if (!isObject(state)) return null;
    const { view, ...request } = state;
    return { request, view: readView(view) };
  } catch {
    return null;
  }
}

function viewOf(view: View): Partial<View> {
  const shown: Partial<View> = {};
  if (view.rank !== 1) shown.rank = view.rank;
  if (view.compare.length > 0) shown.compare = view.compare;
  if (view.strategy !== "") shown.strategy = view.strategy;
  return shown;
}

function readView(value: unknown): View {
  if (!isObject(value)) return FIRST_VIEW;
  const compare = Array.isArray(value.compare) ? value.compare.filter(isRank).slice(0, 2) : [];
  return {
    rank: isRank(value.rank) ? value.rank : 1,
    compare,
    strategy: typeof value.strategy === "string" ? value.strategy : "",
  };
}

function isRank(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0;
}
