import { expect, test } from "vitest";
import type { PlanDocument } from "../../src/document";
import { repaired } from "../../src/page/repairs";
import { exampleForm } from "../../src/page/request";
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

test("every repair changes the fields that it names", () => {
  const form = exampleForm();
  const after = (changes: Record<string, string>) => repaired(form, { label: "", changes });
  expect(after({ mode: "up-to" }).single.mode).toBe("up-to");
  expect(after({ model: "llama-2-7b" }).model).toBe("llama-2-7b");
  expect(after({ epochs: "", dataset_tokens: "" }).single).toMatchObject({ epochs: "" });
  expect(after({ rule: "$tp > 8\n$pp > 2" }).repeated.rule).toBe("$tp > 8\n$pp > 2");
  expect(after({ "pools[0]": "a100:16" }).pools).toMatchObject([{ type: "a100", count: "16" }]);
  expect(after({ gpus: "h100:8,l40s:4" }).pools.map(({ count }) => count)).toEqual(["8", "4"]);
});
