import { expect, test } from "vitest";
import type { PlanDocument } from "../../src/document";
import { AskError } from "../../src/page/api";
import { repairsOf, spoken } from "../../src/page/repairs";
import { exampleForm, formOf } from "../../src/page/request";
import { tradesOf } from "../../src/page/trades";
import { plan } from "./plan";

const GIB = 2 ** 30;

function document(...plans: PlanDocument["plans"]): PlanDocument {
  return { plans, choice: null } as unknown as PlanDocument;
}

const own = plan(1, { train_seconds: 100, usd_total: 1000, iteration_seconds: 50 });

test("a trade says what is given and what is gained", () => {
  const run = { spot_gpus: { "H100-SXM5-80GB": 64 } } as never;
  const other = plan(2, { train_seconds: 105, usd_total: 570, run });
  expect(tradesOf(document(own, other), own)).toEqual([
    { rank: 2, text: "5 % longer saves 43 % (all spot)" },
  ]);
});

test("fewer GPUs are offered with their time and money", () => {
  const gpus = { "H100-SXM5-80GB": 32 };
  const other = plan(2, { train_seconds: 109, usd_total: 1020, gpus });
  expect(tradesOf(document(own, other), own)).toEqual([
    { rank: 2, text: "32 GPUs less: 9 % longer, 2 % dearer" },
  ]);
});

test("more room is offered where it costs little", () => {
  const [stage] = own.memory;
  if (!stage) throw new Error("a plan has stages");
  const memory = [{ ...stage, peak_bytes: stage.peak_bytes - 2 * GIB }];
  const change = { train_seconds: 100.4, usd_total: 1004, iteration_seconds: 50.2, memory };
  const other = plan(2, change);
  expect(tradesOf(document(own, other), own)).toEqual([
    { rank: 2, text: "Safer: 2 GiB more room for 0.4 % more time" },
  ]);
  const slow = plan(2, { ...change, iteration_seconds: 60 });
  expect(tradesOf(document(own, slow), own)).toEqual([]);
});

test("what gains nothing is no trade", () => {
  const worse = plan(2, { train_seconds: 120, usd_total: 1200, iteration_seconds: 60 });
  expect(tradesOf(document(own, worse), own)).toEqual([]);
});

test.each([
  ["--budget 'lots': not a number", "“Budget” 'lots': not a number"],
  [
    "--mix 1 leaves some out; add --mode up-to",
    "“Most pools in one job” 1 leaves some out; add “GPUs to use: Fewer, if better”",
  ],
  ["unknown model 'x'; `astrarium catalog models` lists all", "unknown model 'x'"],
  [
    "a budget or deadline needs --tokens: how long?",
    "a budget or deadline needs “Tokens in all”: how long?",
  ],
])("%s is said in the words of the form", (message, said) => {
  expect(spoken(message)).toBe(said);
  expect(spoken(message)).not.toContain("--");
});

function repaired(message: string, field: string | null = null) {
  const error = new AskError(message, 422, field);
  return repairsOf(error).map(({ text, change }) => [text, change(exampleForm())] as const);
}

test("every way out of a message is a button", () => {
  const mode = { single: { ...exampleForm().single, mode: "up-to" } };
  expect(repaired("--mix 1 …; add --mode up-to", "mix")).toEqual([
    ["Let plans use fewer GPUs", mode],
  ]);
  const [[text, change] = [], [other] = []] = repaired("nodes of 8; use 2 or 4, or …", "pools[0]");
  expect([text, other]).toEqual(["Use 2 GPUs", "Use 4 GPUs"]);
  expect(change?.pools?.[0]?.count).toBe("2");
  expect(repaired("unknown model 'lama' (did you mean 'llama-2-7b'?)", "model")).toEqual([
    ["Use llama-2-7b", { model: "llama-2-7b" }],
  ]);
  const [[set, budget] = []] = repaired("the cheapest run …; --budget 1830000 would do");
  expect(set).toBe("Set the budget to $1.83M");
  expect(budget?.single?.budget).toBe("1830000");
  expect(repaired("something else went wrong")).toEqual([]);
  expect(formOf({}).model).toBe("");
});
