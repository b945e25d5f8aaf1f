import { describe, expect, it } from "vitest";
import { AskError } from "../../src/page/api";
import { commandOf } from "../../src/page/command";
import { fieldOf } from "../../src/page/fields";
import { twinsText } from "../../src/page/plans";
import { repaired } from "../../src/page/repairs";
import { exampleForm, formOf, ownForm, requestOf } from "../../src/page/request";
import { scaled } from "../../src/page/Sweep";
import { plan } from "./plan";

describe("a launch script", () => {
  const form = ownForm("run.sh", "torchrun x.py", exampleForm());

  it("asks only for what it leaves open", () => {
    expect(requestOf(form)).toEqual({ text: "torchrun x.py", name: "run.sh", gpus: "h100" });
  });

  it("is carried by the link", () => {
    const own = { ...(form.own ?? { name: "", text: "" }), set: { N: "2" }, arguments: "7b fast" };
    const request = requestOf({ ...form, own });
    expect(request).toMatchObject({ set: ["N=2"], arguments: ["7b", "fast"] });
    expect(formOf(request).own).toEqual(own);
    expect(commandOf(request)).toBe("astrarium explain run.sh 7b fast --gpus h100 --set N=2");
  });

  it("has its questions at fields of their own", () => {
    const error = new AskError("", 422, { field: "text", asks: ["V", "N"] });
    expect(fieldOf(error)).toBe("set-V");
  });

  it("is repaired where it is for other GPUs", () => {
    const pools = [{ id: 1, type: "h100", count: "2", price: "3" }];
    const repair = { label: "", changes: { gpus: "h100:16" } };
    expect(repaired({ ...form, pools }, repair).pools).toMatchObject([
      { type: "h100", count: "16", price: "3" },
    ]);
  });
});

describe("twins of a plan", () => {
  it("are named in one sentence", () => {
    const twin = { virtual_stages: 2, cp: 1, dp: 8, micro_batch: 1, iteration_seconds: 50 };
    const { cp, virtual_stages: own } = plan(2).strategy;
    const more = { ...twin, cp, virtual_stages: own + 3 };
    expect(twinsText(plan(2))).toBe("");
    expect(twinsText(plan(2, { twins: [more, { ...twin, cp: 4 }] }))).toBe(
      `plan 2 with ${own} to ${own + 3} virtual stages or with cp 4, dp 8, micro-batch 1`,
    );
  });
});

describe("a sweep", () => {
  it("asks for whole GPUs only", () => {
    expect(scaled([{ count: "64" }], 0.5)).toEqual([{ count: "32" }]);
    expect(scaled([{ count: "2" }], 0.25)).toBeNull();
  });
});
