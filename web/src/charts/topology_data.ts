/** Which pools hold which stages of a plan, and the links between them. */

import type { Counts, Plan, PlanDocument, Reach, StageTime } from "../document";
import { gpuOrder } from "../document";
import { bandwidth } from "./format";

export interface StageBox {
  readonly stage: number;
  readonly devices: number;
  readonly gpu: string;
  /** Those of each of its parts: "0-9", "0-1, 16-17". */
  readonly layers: string;
  readonly numLayers: number;
  readonly busyShare: number | null;
}

/** Stages that follow each other on the same pools. */
export interface StageRun {
  readonly pools: Counts;
  /** Names of its first pool and its network, for the head of its box. */
  readonly title: string;
  readonly network: string;
  /** Of the first pool's type of GPU. */
  readonly colour: number;
  /** GPUs of a node; null where its stages lie on several pools. */
  readonly perNode: number | null;
  readonly stages: readonly StageBox[];
}

export interface StageLink {
  readonly from: number;
  readonly to: number;
  readonly reach: Reach;
  /** Of one transfer. */
  readonly seconds: number;
  readonly bandwidth: number | null;
  /** No other link of the plan takes longer. */
  readonly isSlowest: boolean;
}

export interface TopologyData {
  readonly runs: readonly StageRun[];
  readonly links: readonly StageLink[];
  /** GPUs that the plan leaves out, by pool. */
  readonly unused: Counts;
}

export function topologyOf(document: PlanDocument, plan: Plan): TopologyData {
  const times = plan.stage_seconds ?? [];
  const { pp, stages, virtual_stages } = plan.strategy;
  const runs: { pools: Counts; stages: StageBox[] }[] = [];
  const links: Omit<StageLink, "isSlowest">[] = [];
  const used = new Map<string, number>();
  for (let stage = 0; stage < pp; stage++) {
    const chunks = stages.filter((one) => one.pipeline_rank === stage);
    const own = chunks[0];
    if (!own) continue;
    for (const [name, count] of Object.entries(own.pools)) {
      used.set(name, (used.get(name) ?? 0) + count);
    }
    const last = runs[runs.length - 1];
    const run = last && isSame(last.pools, own.pools) ? last : { pools: own.pools, stages: [] };
    if (run !== last) runs.push(run);
    run.stages.push({
      stage,
      devices: own.devices,
      gpu: own.gpu,
      layers: layersText(chunks.map((chunk) => chunk.layers)),
      numLayers: chunks.reduce((sum, { layers: [first, last] }) => sum + last - first, 0),
      busyShare: times[stage]?.busy_share ?? null,
    });
    const next = stage + 1 < pp ? stage + 1 : virtual_stages > 1 ? 0 : -1;
    const time = times[stage];
    if (time && next >= 0 && next !== stage && time.link !== "none") {
      links.push(linkOf(document, time, stage, next));
    }
  }
  const slowest = links.reduce((most, link) => Math.max(most, link.seconds), 0);
  const isSlow = (link: (typeof links)[number]): boolean =>
    slowest > 0 && link.seconds >= slowest * 0.999;
  // Where all are alike, none stands out.
  const areAlike = links.every((link) => isSlow(link) && link.reach === links[0]?.reach);
  return {
    runs: runs.map((run) => described(document, run)),
    links: links.map((link) => ({
      ...link,
      isSlowest: !areAlike && isSlow(link),
    })),
    unused: Object.fromEntries(
      document.cluster.pools
        .map((pool) => [pool.name, pool.gpus - (used.get(pool.name) ?? 0)] as const)
        .filter(([, count]) => count > 0),
    ),
  };
}

function described(
  document: PlanDocument,
  run: { pools: Counts; stages: readonly StageBox[] },
): StageRun {
  const { pools } = document.cluster;
  const names = Object.keys(run.pools);
  const pool = pools.find((one) => one.name === names[0]);
  const gpus = run.stages.reduce((sum, stage) => sum + stage.devices, 0);
  return {
    ...run,
    title: `${names.join(" and ") || run.stages[0]?.gpu}: ${gpus} GPU${gpus === 1 ? "" : "s"}`,
    network: pool
      ? `${pool.intra_node_link} ${bandwidth(pool.intra_node_bytes_per_second)} in a node, ` +
        `${pool.network} ${bandwidth(pool.inter_node_bytes_per_second)} a node`
      : "",
    perNode: names.length === 1 ? (pool?.gpus_per_node ?? null) : null,
    colour: gpuOrder(document).indexOf(pool?.gpu ?? run.stages[0]?.gpu ?? ""),
  };
}

function linkOf(
  document: PlanDocument,
  time: StageTime,
  from: number,
  to: number,
): Omit<StageLink, "isSlowest"> {
  const [one, two] = time.link_pools;
  const pool = document.cluster.pools.find((each) => each.name === one);
  const between = document.cluster.links?.find(
    (each) => one !== undefined && each.between.includes(one) && each.between.includes(two ?? one),
  );
  const widths: Readonly<Record<Reach, number | undefined>> = {
    none: undefined,
    domain: pool?.intra_node_bytes_per_second,
    nodes: pool?.inter_node_bytes_per_second,
    pools: between?.bandwidth_bytes_per_second,
  };
  return {
    from,
    to,
    reach: time.link,
    seconds: time.send_seconds,
    bandwidth: widths[time.link] ?? null,
  };
}

function isSame(one: Counts, two: Counts): boolean {
  return Object.keys(one).sort().join("|") === Object.keys(two).sort().join("|");
}

const MOST_PARTS = 4;

/** "0-8", "0-1, 16-17"; of many parts the first ones and how many follow. */
export function layersText(layers: readonly (readonly [number, number])[]): string {
  const parts = layers
    .filter(([first, last]) => last > first)
    .map(([first, last]) => (last - first === 1 ? `${first}` : `${first}-${last - 1}`));
  if (parts.length <= MOST_PARTS) return parts.join(", ") || "none";
  const shown = parts.slice(0, MOST_PARTS - 1);
  return `${shown.join(", ")} and ${parts.length - shown.length} more parts`;
}
