/** One search at a time: a new request ends the one before, and answers of that are not heard. */
import type { Reviewed } from "../document";
import { AskError, isPassing, type Progress, planned, reviewed } from "./api";
import type { Request } from "./request";

export interface Found {
  document: Reviewed | null;
  /** Whether `document` answers the request at hand, or still the one before. */
  isCurrent: boolean;
  state: "idle" | "searching" | "partial" | "done" | "failed" | "cancelled";
  progress: Progress | null;
  error: AskError | null;
}

export const NOTHING_FOUND: Found = {
  document: null,
  isCurrent: false,
  state: "idle",
  progress: null,
  error: null,
};

type Ask = (...asked: Parameters<typeof planned>) => Promise<Reviewed>;

const ASK: Ask = (request, signal, heard) =>
  "text" in request ? reviewed(request, signal) : planned(request, signal, heard);

/** Edits that follow each other faster than anybody types, as a key held down makes them, ... */
const BURST_MILLISECONDS = 60;
/** ... are waited out; every other edit is searched at once, and ends the search before it. */
const WAIT_MILLISECONDS = 80;
/** A mistake is not told while it may still be typed over. */
const MISTAKE_MILLISECONDS = 400;
const AGAIN_MILLISECONDS = 3000;

/** What another request repairs. */
function isMistake(error: AskError | null): boolean {
  return error !== null && [409, 422].includes(error.status);
}

export class Search {
  #found = NOTHING_FOUND;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #running: AbortController | null = null;
  #edited = Number.NEGATIVE_INFINITY;

  constructor(
    private readonly heard: (found: Found) => void,
    private readonly ask: Ask = ASK,
  ) {}

  /** Search for what was edited, or (with `isTyped` false) for what was chosen. */
  start(request: Request, isTyped = true): void {
    this.#stop();
    const now = performance.now();
    const isBurst = isTyped && now - this.#edited < BURST_MILLISECONDS;
    this.#edited = isTyped ? now : Number.NEGATIVE_INFINITY;
    // A mistake stays told until the next answer: it must not flash with every letter.
    const error = isTyped && isMistake(this.#found.error) ? this.#found.error : null;
    this.#tell({ state: "searching", isCurrent: false, progress: null, error });
    if (isBurst) this.#timer = setTimeout(() => void this.#search(request), WAIT_MILLISECONDS);
    else void this.#search(request);
  }

  /** An answer that was saved, in place of a search. */
  async open(saved: () => Promise<Reviewed>): Promise<void> {
    this.#tell({ state: "searching" });
    try {
      this.#tell({ document: await saved(), isCurrent: true, state: "done" });
    } catch (error) {
      const problem = error instanceof AskError ? error : new AskError(String(error), 0);
      this.#tell({ state: "failed", error: problem });
    }
  }

  /** Nothing is asked yet. */
  rest(): void {
    this.#stop();
    this.#tell({ state: "idle", isCurrent: false, progress: null, error: null });
  }

  cancel(): void {
    if (this.#found.state !== "searching" && this.#found.state !== "partial") return;
    this.#stop();
    this.#tell({ state: "cancelled", progress: null });
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#running?.abort();
    this.#running = null;
  }

  async #search(request: Request): Promise<void> {
    const own = new AbortController();
    this.#running = own;
    const tell = (change: Partial<Found>): void => {
      if (this.#running === own) this.#tell(change);
    };
    try {
      const document = await this.ask(request, own.signal, {
        progress: (progress) => tell({ progress }),
        plans: (document) => tell({ document, isCurrent: true, state: "partial", error: null }),
      });
      tell({ document, isCurrent: true, state: "done", progress: null, error: null });
    } catch (error) {
      const problem = error instanceof AskError ? error : new AskError(String(error), 0);
      await this.#typedOn(problem);
      if (this.#running !== own) return;
      // Plans that were told before stay: a search that took too long has found some.
      tell({ state: "failed", error: problem, progress: null });
      if (isPassing(problem)) {
        this.#timer = setTimeout(() => void this.#search(request), AGAIN_MILLISECONDS);
      }
    }
  }

  /** Waits until who made a mistake has had the time to type on. */
  #typedOn(problem: AskError): Promise<void> {
    const left = isMistake(problem) ? this.#edited + MISTAKE_MILLISECONDS - performance.now() : 0;
    return left > 0 ? new Promise((done) => setTimeout(done, left)) : Promise.resolve();
  }

  #tell(change: Partial<Found>): void {
    this.#found = { ...this.#found, ...change };
    this.heard(this.#found);
  }
}
