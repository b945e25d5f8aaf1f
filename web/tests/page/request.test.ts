import { describe, expect, test } from "vitest";
import { commandOf, optionsOf, quoted } from "../../src/page/command";
import { FIRST_VIEW, hashOf, stateOf } from "../../src/page/link";
import {
  exampleForm,
  type Form,
  formOf,
  newPool,
  onGpusOf,
  requestOf,
} from "../../src/page/request";
import { plan } from "./plan";

function form(change: Partial<Form> = {}): Form {
  return { ...exampleForm(), ...change };
}

describe("the request of a form", () => {
  test("the example is complete", () => {
    expect(requestOf(exampleForm())).toEqual({
      model: "llama-2-70b",
      pools: [{ type: "h100", count: "64" }],
      seq_length: "4096",
      global_batch: "1024",
      tokens: "2T",
      objective: "throughput",
      mode: "exact",
      precision: "bf16",
      top: "10",
    });
  });

  test("what is empty is left out, and what is typed stays as it is", () => {
    const request = requestOf(
      form({ single: { seq_length: " ", budget: " 200k " }, repeated: { rule: "\n  \n" } }),
    );
    expect(request).not.toHaveProperty("seq_length");
    expect(request).not.toHaveProperty("rule");
    expect(request.budget).toBe("200k");
  });

  test("rules are lines", () => {
    const request = requestOf(form({ repeated: { rule: "$tp > 8\n\n $pp == 3 " } }));
    expect(request.rule).toEqual(["$tp > 8", "$pp == 3"]);
  });

  test("a price belongs to its row", () => {
    const pools = [newPool("h100", "8", "2.5"), newPool("a100", "16")];
    expect(requestOf(form({ pools })).pools).toEqual([
      { type: "h100", count: "8", usd_per_gpu_hour: "2.5" },
      { type: "a100", count: "16" },
    ]);
  });

  test("no rows are said to be none, unless clouds are named", () => {
    expect(requestOf(form({ pools: [] })).pools).toEqual([]);
    const market = requestOf(form({ pools: [], single: { market: "aws" } }));
    expect(market).not.toHaveProperty("pools");
  });

  test("a config takes the place of the name", () => {
    const request = requestOf(form({ config: { model_type: "llama" } }));
    expect(request).not.toHaveProperty("model");
    expect(request.config).toEqual({ model_type: "llama" });
  });
});

describe("the state in the address", () => {
  const full = form({
    pools: [newPool("h100", "8", "2.5"), newPool("a100", "16")],
    single: { ...exampleForm().single, budget: "200k", spot: "mix", market: "aws" },
    repeated: { rule: "$tp > 8\n$pp == 3", interruptions: "10%/day" },
    sensitivity: true,
    config: { name: "größer → ∞ 模型" },
  });

  test("comes back as it was", () => {
    const request = requestOf(full);
    const view = { rank: 3, compare: [1, 4], strategy: "tp=8,pp=4" };
    const hash = hashOf(request, view);
    expect(hash).toMatch(/^#[\w-]+$/);
    expect(stateOf(hash)).toEqual({ request, view });
    expect(requestOf(formOf(request))).toEqual(request);
  });

  test("has nothing of the first view", () => {
    const request = requestOf(exampleForm());
    expect(stateOf(hashOf(request))).toEqual({ request, view: FIRST_VIEW });
    expect(atob(hashOf(request).slice(1))).not.toContain("view");
  });

  test.each(["", "#", "#%%%", "#bm90IGpzb24", "#WzFd", "#bnVsbA", "#_w"])("%j is none", (hash) => {
    expect(stateOf(hash)).toBeNull();
  });

  test("views that make no sense are not kept", () => {
    const view = { rank: -1, compare: ["x", 2, 3, 4], strategy: 7 };
    const hash = `#${btoa(JSON.stringify({ model: "m", view }))}`;
    expect(stateOf(hash)?.view).toEqual({ rank: 1, compare: [2, 3], strategy: "" });
  });

  test("flags of the command line are read, too", () => {
    const read = formOf({ model: "m", gpus: "h100:8,a100:16", price: ["a100=2"], rule: "$tp > 1" });
    expect(requestOf(read)).toEqual({
      model: "m",
      pools: [
        { type: "h100", count: "8" },
        { type: "a100", count: "16", usd_per_gpu_hour: "2" },
      ],
      rule: ["$tp > 1"],
    });
  });
});

describe("the command line", () => {
  test("of the example, without defaults", () => {
    expect(commandOf(requestOf(exampleForm()))).toBe(
      "astrarium plan llama-2-70b --gpus h100:64 --global-batch 1024 --seq-length 4096" +
        " --tokens 2T --top 10",
    );
  });

  test("is broken before options only", () => {
    const command = "astrarium plan 'a b' --rule '$tp > 8' --sensitivity";
    const parts = ["astrarium plan 'a b'", "--rule '$tp > 8'", "--sensitivity"];
    expect(optionsOf(command)).toEqual(parts);
  });

  test("of everything else", () => {
    const request = {
      config: {},
      pools: [
        { type: "h100", count: "8", usd_per_gpu_hour: "2.5" },
        { type: "a100", count: "16" },
      ],
      objective: "cost",
      budget: "-1",
      rule: ["$tp > 8", "$recompute == 'full'"],
      sensitivity: true,
    };
    expect(commandOf(request, "my config.json")).toBe(
      "astrarium plan 'my config.json' --gpus h100:8,a100:16 --price h100=2.5 --objective cost" +
        ` --budget=-1 --rule '$tp > 8' --rule '$recompute == '"'"'full'"'"'' --sensitivity`,
    );
  });

  test.each([
    ["h100:64", "h100:64"],
    ["", "''"],
    ["$HOME", "'$HOME'"],
    ["a b", "'a b'"],
    ["it's", `'it'"'"'s'`],
    ["~/x", "'~/x'"],
  ])("%j is typed as %s", (word, typed) => {
    expect(quoted(word)).toBe(typed);
  });
});

describe("the request of a strategy of one's own", () => {
  const pools = [{ type: "H100-SXM5-80GB", count: 64, usd_per_gpu_hour: 4 }];

  test("is on the GPUs of the plan where the search chose them", () => {
    const market = { model: "llama-2-7b", market: "aws", spot: "mix", mix: "2", budget: "1M" };
    const expected = { model: "llama-2-7b", budget: "1M", mode: "exact", pools };
    expect(onGpusOf(plan(1), market)).toEqual(expected);
    expect(onGpusOf(plan(1), { mode: "up-to", pools: [] })).toEqual({ mode: "exact", pools });
  });

  test("is the same where all GPUs are used", () => {
    const request = requestOf(exampleForm());
    expect(onGpusOf(plan(1), request)).toBe(request);
  });

  test("has no price where the plan has none", () => {
    const [pool] = onGpusOf(plan(1, { usd_per_hour: null }), { market: "aws" }).pools as object[];
    expect(pool).toEqual({ type: "H100-SXM5-80GB", count: 64 });
  });
});
