import { describe, expect, it } from "vitest";
import { partsOf } from "../src/charts/breakdown";
import { lookOf } from "../src/charts/front";
import { frontOf, kindOf } from "../src/charts/front_data";
import { layoutOf } from "../src/charts/topology";
import { layersText, topologyOf } from "../src/charts/topology_data";
import { gpuOrder, listedPlans, type Plan, type PlanDocument } from "../src/document";
import { PLANS } from "./fixtures";

const [BEST] = PLANS.plans as [Plan];

function changed(plan: Partial<Plan>): PlanDocument {
  return { ...PLANS, pareto: [], plans: PLANS.plans.map((one) => ({ ...one, ...plan })) };
}

describe("the front of a document", () => {
  it("has a point for every plan, those of the front first", () => {
    const front = frontOf(PLANS);
    expect(front.points.map((point) => [point.plan, point.isOnFront])).toEqual([
      [0, true],
      [1, false],
    ]);
    expect(front.points[0]?.usdInterval).toEqual(PLANS.pareto?.[0]?.usd_interval);
    expect(front.missing).toBe("");
  });

  it("is of an iteration where the tokens are not known", () => {
    const front = frontOf(changed({ train_seconds: null, usd_total: null }));
    expect(front.time).toBe("Time of an iteration");
    const [point] = front.points;
    expect(point?.seconds).toBe(BEST.iteration_seconds);
    expect(point?.secondsInterval?.[0]).toBeCloseTo(BEST.interval_seconds[0], 9);
    expect(point?.usd).toBeCloseTo(((BEST.usd_per_hour ?? 0) * BEST.iteration_seconds) / 3600);
  });

  it("says why it is empty", () => {
    const front = frontOf(changed({ usd_total: null, usd_per_hour: null }));
    expect(front.points).toEqual([]);
    expect(front.missing).toContain("No price");
  });

  it("gives mixed types other colours than their pools", () => {
    const { kinds } = frontOf(PLANS);
    const mixed = lookOf(kinds, kindOf(BEST.gpus));
    for (const type of gpuOrder(PLANS)) {
      expect(lookOf(kinds, type)).not.toEqual(mixed);
    }
    expect(lookOf(kinds, "unheard of").colour).toBe("grey");
  });
});

describe("colours of many types", () => {
  it("are for those that plans use", () => {
    const pool = PLANS.cluster.pools[0];
    if (!pool) throw new Error("the fixture has pools");
    const pools = ["P", "Q", "R", "S", "A100-SXM4-80GB"].map((gpu) => ({ ...pool, gpu }));
    const many = { ...PLANS, cluster: { ...PLANS.cluster, pools } };
    expect(gpuOrder(many)).toEqual(["A100-SXM4-80GB"]);
    expect(gpuOrder(PLANS)).toEqual(["H100-SXM5-80GB", "A100-SXM4-80GB"]);
  });

  it("stay while plans come and go", () => {
    const pool = PLANS.cluster.pools[0];
    if (!pool) throw new Error("the fixture has pools");
    const pools = ["P", "Q", "R", "S", "T"].map((gpu) => ({ ...pool, gpu, name: gpu }));
    const using = (...types: string[]): PlanDocument => ({
      ...PLANS,
      cluster: { ...PLANS.cluster, pools },
      plans: types.map((type) => ({ ...BEST, gpus: { [type]: 8 } })),
    });
    expect(gpuOrder(using("Q", "S"))).toEqual(["Q", "S"]);
    expect(gpuOrder(using("P", "S"))).toEqual(["P", "S"]);
    expect(gpuOrder(using("R", "P", "S"))).toEqual(["P", "S", "R"]);
  });

  it("lists as many plans as were asked for", () => {
    expect(listedPlans(PLANS).length).toBe(2);
    expect(listedPlans({ ...PLANS, search: null }).length).toBe(2);
  });
});

describe("the breakdown", () => {
  it("leaves out what takes no time, and adds up to the iteration", () => {
    const { parts, total } = partsOf(BEST.breakdown_seconds);
    expect(total).toBeCloseTo(BEST.iteration_seconds, 6);
    expect(parts.every((part) => part.seconds > 0)).toBe(true);
    expect(parts[1]?.from).toBeCloseTo(parts[0]?.seconds ?? 0);
  });

  it("shows causes that it does not know", () => {
    expect(partsOf({ new_cause: 2 }).parts[0]?.cause.title).toBe("new cause");
  });
});

describe("the topology", () => {
  it("puts neighbours on the same pools into one run", () => {
    const { runs, unused } = topologyOf(PLANS, BEST);
    expect(runs.map((run) => run.stages.map((stage) => stage.stage))).toEqual([[0, 1], [2]]);
    expect(unused).toEqual({});
  });

  it("marks the links that take longest", () => {
    const times = BEST.stage_seconds?.map((stage, index) => ({
      ...stage,
      send_seconds: index === 1 ? 2 : 1,
    }));
    const { links } = topologyOf(PLANS, { ...BEST, stage_seconds: times ?? [] });
    expect(links.map((link) => [link.from, link.to, link.reach, link.isSlowest])).toEqual([
      [0, 1, "nodes", false],
      [1, 2, "pools", true],
    ]);
  });

  it("stands documents without seconds of stages", () => {
    const { stage_seconds: _, ...older } = BEST;
    expect(topologyOf(PLANS, older).links).toEqual([]);
  });

  it("counts what is not used", () => {
    const pools = PLANS.cluster.pools.map((pool) => ({ ...pool, gpus: pool.gpus + 8 }));
    const more = { ...PLANS, cluster: { ...PLANS.cluster, pools } };
    expect(topologyOf(more, BEST).unused).toEqual({ "H100-SXM5-80GB": 8, "A100-SXM4-80GB": 8 });
  });

  it("fits any width, without boxes over each other", () => {
    const data = topologyOf(PLANS, BEST);
    for (const width of [320, 390, 1280]) {
      const { stages, chip, runs, height } = layoutOf(data, width);
      for (const stage of stages) expect(stage.x + chip.width).toBeLessThanOrEqual(width);
      for (const [index, run] of runs.entries()) {
        const next = runs[index + 1]?.y ?? height;
        expect(run.y + run.height).toBeLessThanOrEqual(next);
      }
    }
  });

  it("draws stages without layers", () => {
    const [first, ...others] = BEST.strategy.stages;
    const empty = { ...first, layers: [0, 0] as const } as (typeof BEST.strategy.stages)[number];
    const strategy = { ...BEST.strategy, stages: [empty, ...others] };
    const box = topologyOf(PLANS, { ...BEST, strategy }).runs[0]?.stages[0];
    expect(box).toMatchObject({ stage: 0, layers: "none", numLayers: 0 });
  });

  it("writes layers short", () => {
    expect(layersText([[0, 9]])).toBe("0-8");
    expect(
      layersText([
        [3, 4],
        [11, 12],
      ]),
    ).toBe("3, 11");
    expect(layersText([[5, 5]])).toBe("none");
  });
});
