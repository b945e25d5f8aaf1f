import { describe, expect, test } from "vitest";
import { detailText, strategyText } from "../../src/charts/format";
import type { Plan, PlanDocument, Strategy } from "../../src/document";
import { AskError } from "../../src/page/api";
import { isHalf, matching } from "../../src/page/Combobox";
import { changeText } from "../../src/page/Compare";
import { fileName } from "../../src/page/download";
import { fieldOf } from "../../src/page/fields";
import { durations, offerText, plainWords } from "../../src/page/format";
import { clicked, FIRST_ORDER, filterOf, rankAmong, sorted } from "../../src/page/plans";
import { plan } from "./plan";

const PLANS = [
  plan(1, { mfu: 0.5, usd_total: 3e6 }, { tp: 8 }),
  plan(2, { mfu: 0.6, usd_total: null }, { tp: 4 }),
  plan(3, { mfu: 0.4, usd_total: 1e6, gpus: { "A100-SXM4-80GB": 32 } }, { tp: 8, pp: 2 }),
];
const ranks = (plans: readonly { rank: number }[]): number[] => plans.map((one) => one.rank);

describe("sorting", () => {
  test("by any column, unknown values last both ways", () => {
    expect(ranks(sorted(PLANS, FIRST_ORDER))).toEqual([1, 2, 3]);
    expect(ranks(sorted(PLANS, { key: "mfu", descending: true }))).toEqual([2, 1, 3]);
    expect(ranks(sorted(PLANS, { key: "gpus", descending: false }))).toEqual([3, 1, 2]);
    const cost = PLANS.map((one) => ({ ...one, usd_per_hour: null }));
    expect(ranks(sorted(cost, { key: "usd", descending: false }))).toEqual([3, 1, 2]);
    expect(ranks(sorted(cost, { key: "usd", descending: true }))).toEqual([1, 3, 2]);
  });

  test("the first click shows the best on top, the second the worst", () => {
    expect(clicked(FIRST_ORDER, "mfu")).toEqual({ key: "mfu", descending: true });
    expect(clicked(FIRST_ORDER, "usd")).toEqual({ key: "usd", descending: false });
    expect(clicked({ key: "usd", descending: false }, "usd").descending).toBe(true);
  });
});

describe("filtering", () => {
  function kept(text: string): number[] {
    const filter = filterOf(text);
    if ("mistake" in filter) throw new Error(filter.mistake);
    return ranks(PLANS.filter(filter.accepts));
  }

  test.each([
    ["", [1, 2, 3]],
    ["tp=8", [1, 3]],
    ["tp = 8  pp>2", [1]],
    ["a100", [3]],
    ["H100 tp!=8", [2]],
    ["usd<2M", [3]],
    ["usd<=$3,000,000", [1, 3]],
    ["mfu>=50%", [1, 2]],
    ["days<282", [1]],
    ["nothing", []],
  ])("%j", (text, expected) => {
    expect(kept(text)).toEqual(expected);
  });

  test.each(["tp=", "foo=3", "tp=x", "=3"])("%j is told to be no condition", (text) => {
    expect(filterOf(text)).toHaveProperty("mistake");
  });
});

describe("rank of a strategy of one's own", () => {
  test("by the objective", () => {
    const own = plan(1, { tokens_per_second: 79997.5, usd_total: 2e6, train_seconds: 1 });
    expect(rankAmong(own, PLANS, "throughput")).toBe(3);
    expect(rankAmong(own, PLANS, "time")).toBe(1);
    expect(rankAmong(own, [PLANS[0], PLANS[2]] as typeof PLANS, "cost")).toBe(2);
  });

  test("a plan is not behind itself", () => {
    expect(rankAmong(plan(1), [plan(1), plan(2)], "throughput")).toBe(1);
  });
});

describe("words", () => {
  test("of strategies", () => {
    const { strategy } = plan(1, {}, { virtual_stages: 10 });
    expect(strategyText(strategy)).toBe("tp 4 · pp 8 · dp 2");
    expect(detailText(strategy)).toBe("micro-batch 2 · 10 virtual · ZeRO 1");
    expect(plainWords(strategy)).toBe(
      "Each layer is split over 4 GPUs (tp 4), the layers form a pipeline of 8 stages (pp 8), 2 copies share the batch (dp 2).",
    );
    expect(strategyText(plan(1, {}, { tp: 1, pp: 1, dp: 1 }).strategy)).toBe("one GPU");
  });

  test.each([
    [0, "same"],
    [0.0004, "same"],
    [0.0128, "+1.3 %"],
    [-0.5, "−50.0 %"],
    [55.1, "× 56.1"],
    [null, "–"],
  ])("a change of %j is %s", (change, text) => {
    expect(changeText(change)).toBe(text);
  });

  test("of intervals", () => {
    expect(durations(48.8, 60.1)).toBe("48.8 to 60.1 s");
    expect(durations(100, 1000)).toBe("1.67 to 16.7 min");
  });

  test("of files", () => {
    expect(fileName("../Llama 3/405B-plan-1")).toBe("Llama-3-405B-plan-1");
    expect(fileName("///")).toBe("plan");
  });
});

test("messages stand beside their fields", () => {
  const field = (name: string | null, status = 422): string | null =>
    fieldOf(new AskError("", status, { field: name }));
  expect(field("tokens")).toBe("tokens");
  expect(field("config")).toBe("model");
  expect(field("gpus")).toBe("pools");
  expect(field("pools[1].usd_per_gpu_hour")).toBe("pools[1].usd_per_gpu_hour");
  expect(field("rule[0]")).toBe("rule");
  expect(field("something")).toBeNull();
  expect(field(null)).toBeNull();
  expect(field("tokens", 409)).toBeNull();
  expect(fieldOf(null)).toBeNull();
});

test("suggestions have all words, those that begin with the text first", () => {
  const suggestions = ["llama-2-7b", "code-llama-7b", "llama-2-70b"].map((value) => ({
    value,
    others: [],
    about: "",
  }));
  const found = (text: string): string[] => matching(suggestions, text).map((one) => one.value);
  expect(found("")).toEqual(["llama-2-7b", "code-llama-7b", "llama-2-70b"]);
  expect(found("llama")).toEqual(["llama-2-7b", "llama-2-70b", "code-llama-7b"]);
  expect(found("70 llama")).toEqual(["llama-2-70b"]);
  expect(found("gpt")).toEqual([]);
  expect(
    ["lla", "llama-2-7b", "Llama-2-70B", "gpt"].map((text) => isHalf(suggestions, text)),
  ).toEqual([true, false, false, false]);
});

describe("where GPUs are rented", () => {
  const pools = [
    { name: "A@aws", cloud: "aws" },
    { name: "A@gcp", cloud: "gcp" },
    { name: "own", cloud: "" },
  ];
  const document = { cluster: { pools } } as unknown as PlanDocument;
  const on = (pool: string, change: Partial<Plan> = {}): Plan =>
    plan(1, change, { stages: [{ pools: { [pool]: 8 } }] as unknown as Strategy["stages"] });

  test("names the clouds of the plan's own GPUs", () => {
    expect(offerText(document, on("A@gcp"))).toBe("gcp");
    expect(offerText(document, on("own"))).toBe("");
  });

  test("says how many may be taken away", () => {
    const run = { spot_gpus: { A: 8 } } as unknown as NonNullable<Plan["run"]>;
    expect(offerText(document, on("A@aws", { run }))).toBe("aws, 8 of them spot");
    expect(offerText(document, on("A@aws", { run, gpus: { A: 8 } }))).toBe("aws, all spot");
  });
});
