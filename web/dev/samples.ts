/** Large inputs to try the pictures with. */

import type { FrontData, FrontPoint } from "../src/charts/front_data";
import type { TimelineDocument } from "../src/document";

/** 1F1B of equal stages: the longest timeline that has to stay smooth is 64 x 256. */
export function sampleTimeline(stages: number, batches: number): TimelineDocument {
  const [forward, backward, sending] = [0.01, 0.02, 0.001];
  const columns = {
    kind: [] as number[],
    stage: [] as number[],
    start: [] as number[],
    end: [] as number[],
    micro_batch: [] as number[],
    chunk: [] as number[],
    to_stage: [] as number[],
  };
  const push = (kind: number, stage: number, start: number, end: number, b: number, to: number) => {
    columns.kind.push(kind);
    columns.stage.push(stage);
    columns.start.push(start);
    columns.end.push(end);
    columns.micro_batch.push(b);
    columns.chunk.push(b < 0 ? -1 : 0);
    columns.to_stage.push(to);
  };
  const doneForward = new Float64Array(stages * batches).fill(-1);
  const doneBackward = new Float64Array(stages * batches).fill(-1);
  const free = new Float64Array(stages);
  const queues = Array.from({ length: stages }, (_, stage) => orderOf(stage, stages, batches));
  const next = new Int32Array(stages);
  for (let left = stages * batches * 2; left > 0; ) {
    for (let stage = 0; stage < stages; stage++) {
      for (;;) {
        const pass = queues[stage]?.[next[stage] as number];
        if (pass === undefined) break;
        const isBackward = pass < 0;
        const batch = isBackward ? -pass - 1 : pass;
        const from = isBackward ? stage + 1 : stage - 1;
        const before = isBackward ? doneBackward : doneForward;
        const isEdge = isBackward ? stage === stages - 1 : stage === 0;
        const ready = isEdge ? 0 : (before[from * batches + batch] as number);
        if (ready < 0) break;
        const arrived = isEdge ? 0 : ready + sending;
        const start = Math.max(free[stage] as number, arrived);
        const end = start + (isBackward ? backward : forward);
        free[stage] = end;
        before[stage * batches + batch] = end;
        push(isBackward ? 1 : 0, stage, start, end, batch, -1);
        const to = isBackward ? stage - 1 : stage + 1;
        if (to >= 0 && to < stages) push(2, stage, end, end + sending, batch, to);
        next[stage] = (next[stage] as number) + 1;
        left--;
      }
    }
  }
  const flushed = Math.max(...free);
  for (let stage = 0; stage < stages; stage++) {
    push(3, stage, flushed, flushed + 0.05, -1, -1);
    push(4, stage, flushed + 0.05, flushed + 0.09, -1, -1);
  }
  return {
    seconds: flushed + 0.09,
    kinds: ["forward", "backward", "transfer", "gradient_reduction", "optimizer"],
    stages: Array.from({ length: stages }, (_, stage) => ({
      stage,
      gpu: stage < stages / 2 ? "H100-SXM5-80GB" : "A100-SXM4-80GB",
      devices: 8,
      layers: [[stage, stage + 1]],
      busy_seconds: batches * 0.03,
    })),
    events: columns,
    memory: Array.from({ length: stages }, (_, stage) => memoryOf(columns, stage)),
    left_out: 0,
  };
}

/** Forward passes as micro-batches, backward ones as minus these, minus one. */
function orderOf(stage: number, stages: number, batches: number): number[] {
  const warm = Math.min(batches, stages - stage);
  const order: number[] = [];
  for (let batch = 0; batch < warm; batch++) order.push(batch);
  for (let batch = 0; batch < batches; batch++) {
    order.push(-batch - 1);
    if (warm + batch < batches) order.push(warm + batch);
  }
  return order;
}

function memoryOf(
  columns: { kind: number[]; stage: number[]; start: number[]; end: number[] },
  stage: number,
): { moments: number[]; bytes: number[] } {
  const changes: [number, number][] = [];
  for (const [row, own] of columns.stage.entries()) {
    if (own !== stage) continue;
    if (columns.kind[row] === 0) changes.push([columns.start[row] as number, 1]);
    if (columns.kind[row] === 1) changes.push([columns.end[row] as number, -1]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  let held = 30;
  const bytes = changes.map(([, by]) => {
    held += 0.5 * by;
    return held * 2 ** 30;
  });
  return { moments: [0, ...changes.map(([moment]) => moment)], bytes: [30 * 2 ** 30, ...bytes] };
}

/** A cloud of points over three decades, the best of them on the front. */
export function sampleFront(count: number, isAllFront = false): FrontData {
  let seed = 7;
  const random = () => {
    seed = (seed * 16807) % 2147483647;
    return seed / 2147483647;
  };
  const kinds = ["H100-SXM5-80GB", "A100-SXM4-80GB", "L40S-48GB", "MI300X-192GB"];
  const points: FrontPoint[] = [];
  for (let index = 0; index < count; index++) {
    const seconds = 86400 * 10 ** (3 * random());
    const above = isAllFront ? 1 : 1 + 2 * random() ** 2;
    const usd = 3e5 * above * (seconds / 86400) ** -0.2;
    points.push({
      plan: index,
      seconds,
      usd,
      secondsInterval: [seconds * 0.93, seconds * 1.12],
      usdInterval: [usd * 0.93, usd * 1.12],
      isOnFront: false,
      kind: kinds[Math.floor(random() * kinds.length)] as string,
      lines: [`Point ${index}`],
    });
  }
  let least = Number.POSITIVE_INFINITY;
  const front = new Set<number>();
  for (const point of points.toSorted((a, b) => a.seconds - b.seconds)) {
    if (point.usd >= least) continue;
    least = point.usd;
    front.add(point.plan);
  }
  return {
    points: points.map((point) => ({ ...point, isOnFront: front.has(point.plan) })),
    time: "Time of the run",
    money: "Cost of the run",
    kinds,
    missing: "",
  };
}
