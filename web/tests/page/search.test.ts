import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { PlanDocument } from "../../src/document";
import { AskError } from "../../src/page/api";
import { type Found, Search } from "../../src/page/search";

interface Asked {
  request: unknown;
  signal: AbortSignal;
  plans: (document: PlanDocument) => void;
  answer: (document: PlanDocument) => void;
  fail: (error: Error) => void;
}

const document = (name: string): PlanDocument => ({ schema: name }) as PlanDocument;

describe("searches", () => {
  let asked: Asked[];
  let found: Found;
  let search: Search;

  beforeEach(() => {
    vi.useFakeTimers();
    asked = [];
    search = new Search(
      (told) => {
        found = told;
      },
      (request, signal, heard) =>
        new Promise((answer, fail) => {
          asked.push({ request, signal, plans: heard.plans, answer, fail });
        }),
    );
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  test("an edit is searched at once, and ends the search before it", () => {
    search.start({ top: "1" });
    expect(asked.map((one) => one.request)).toEqual([{ top: "1" }]);
    vi.advanceTimersByTime(120);
    search.start({ top: "12" });
    expect(asked.map((one) => one.request)).toEqual([{ top: "1" }, { top: "12" }]);
    expect(asked.map((one) => one.signal.aborted)).toEqual([true, false]);
  });

  test("a key held down is waited out", () => {
    for (const top of ["1234", "123", "12", "1"]) {
      search.start({ top });
      vi.advanceTimersByTime(33);
    }
    vi.advanceTimersByTime(80);
    expect(asked.map((one) => one.request)).toEqual([{ top: "1234" }, { top: "1" }]);
  });

  test("a mistake is not told while it may be typed over", async () => {
    search.start({ tokens: "2" });
    asked[0]?.fail(new AskError("too few", 422, { field: "tokens" }));
    await vi.advanceTimersByTimeAsync(150);
    expect(found).toMatchObject({ state: "searching", error: null });
    search.start({ tokens: "2T" });
    asked[1]?.fail(new AskError("still wrong", 422, { field: "tokens" }));
    await vi.advanceTimersByTimeAsync(399);
    expect(found.error).toBe(null);
    await vi.advanceTimersByTimeAsync(1);
    expect(found).toMatchObject({ state: "failed", error: { message: "still wrong" } });
  });

  test("an answer that comes too late is not shown", async () => {
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    expect(asked[0]?.signal.aborted).toBe(true);
    asked[0]?.plans(document("old"));
    asked[0]?.answer(document("old"));
    await vi.advanceTimersByTimeAsync(0);
    expect(found).toMatchObject({ document: null, isCurrent: false, state: "searching" });
    asked[1]?.plans(document("first"));
    expect(found).toMatchObject({ document: document("first"), state: "partial" });
    asked[1]?.answer(document("last"));
    await vi.advanceTimersByTimeAsync(0);
    expect(found).toMatchObject({ document: document("last"), state: "done" });
  });

  test("cancelled: what was found stays", async () => {
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    asked[0]?.plans(document("some"));
    search.cancel();
    expect(asked[0]?.signal.aborted).toBe(true);
    asked[0]?.fail(new DOMException("aborted", "AbortError"));
    await vi.advanceTimersByTimeAsync(0);
    expect(found).toMatchObject({ document: document("some"), state: "cancelled", error: null });
  });

  test("what was found before an edit is known to be old", async () => {
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    asked[0]?.answer(document("old"));
    await vi.advanceTimersByTimeAsync(0);
    expect(found.isCurrent).toBe(true);
    search.start({});
    expect(found).toMatchObject({ document: document("old"), isCurrent: false });
    search.cancel();
    expect(found).toMatchObject({ state: "cancelled", isCurrent: false });
  });

  test("plans of a search that took too long stay", async () => {
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    asked[0]?.plans(document("some"));
    asked[0]?.fail(new AskError("too long", 504));
    await vi.advanceTimersByTimeAsync(0);
    expect(found).toMatchObject({ document: document("some"), state: "failed", isCurrent: true });
  });

  test("a mistake is told once; a lost server is asked again", async () => {
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    asked[0]?.fail(new AskError("negative", 422, { field: "tokens" }));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(found.error).toMatchObject({ message: "negative", field: "tokens" });
    expect(asked.length).toBe(1);
    search.start({}, false);
    await vi.advanceTimersByTimeAsync(0);
    asked[1]?.fail(new AskError("no answer", 0));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(asked.length).toBe(3);
    asked[2]?.answer(document("back"));
    await vi.advanceTimersByTimeAsync(0);
    expect(found).toMatchObject({ state: "done", error: null });
  });
});
