import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { afterFrame } from "../../src/page/frames";

let frames: (() => void)[];

beforeEach(() => {
  vi.useFakeTimers();
  frames = [];
  vi.stubGlobal("requestAnimationFrame", (work: () => void) => frames.push(work));
});

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** The next frame, and what comes right behind it. */
function frame(): void {
  for (const work of frames.splice(0)) work();
  vi.runAllTimers();
}

test("work is done in order, a piece behind each frame", () => {
  const done: string[] = [];
  for (const name of ["a", "b", "c"]) afterFrame(() => done.push(name));
  expect(done).toEqual([]);
  frame();
  expect(done).toEqual(["a"]);
  frame();
  frame();
  expect(done).toEqual(["a", "b", "c"]);
  expect(frames).toEqual([]);
});

test("what is taken back is not done", () => {
  const done: string[] = [];
  const takeBack = afterFrame(() => done.push("a"));
  afterFrame(() => done.push("b"));
  takeBack();
  frame();
  expect(done).toEqual(["b"]);
});

test("a mistake of one does not keep the others", () => {
  const done: string[] = [];
  afterFrame(() => {
    throw new Error("broken");
  });
  afterFrame(() => done.push("b"));
  expect(frame).toThrow("broken");
  frame();
  expect(done).toEqual(["b"]);
});
