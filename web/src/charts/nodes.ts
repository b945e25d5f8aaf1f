/** The GPUs of stages in their nodes: a column for each node, a row for each rail. */

import { svg } from "./svg";
import type { StageRun } from "./topology_data";

const MOST_CELL = 9;
const COLUMN_HEIGHT = 76;
const GAP = 8;
/** Above: which stage begins. */
const TITLE = 14;
const MOST_RAILS = 16;

export function nodesHeight(run: StageRun): number {
  const { perNode } = run;
  return perNode === null ? 0 : TITLE + rowsOf(run) * cellOf(perNode) + GAP + TITLE;
}

/** Ranks count through the stages, so each has the GPUs behind those of the stage before. */
export function nodesOf(
  run: StageRun,
  left: number,
  top: number,
  width: number,
  chosen: number | null,
): SVGGElement {
  const group = svg("g");
  const { perNode } = run;
  if (perNode === null) return group;
  const cell = cellOf(perNode);
  const stages = run.stages.flatMap((box) => Array.from({ length: box.devices }, () => box.stage));
  const nodes = Math.ceil(stages.length / perNode);
  const shown = Math.min(nodes, Math.floor(width / (cell + GAP)));
  const y = top + TITLE;
  // Rails: a network of their own for the GPUs at the same place of all nodes.
  for (let rail = 0; shown > 1 && perNode <= MOST_RAILS && rail < perNode; rail++) {
    const middle = y + (rail + 0.5) * cell;
    const x2 = left + shown * (cell + GAP) - GAP;
    group.append(
      svg("line", { x1: left, x2, y1: middle, y2: middle, stroke: "var(--chart-rule)" }),
    );
  }
  for (let index = 0; index < Math.min(stages.length, shown * perNode); index++) {
    const stage = stages[index] as number;
    const x = left + Math.floor(index / perNode) * (cell + GAP);
    const fill = stage === chosen ? "accent" : stage % 2 ? "sky" : "blue";
    const size = cell - 1;
    group.append(
      svg("rect", {
        x,
        y: y + (index % perNode) * cell,
        width: size,
        height: size,
        fill: `var(--chart-${fill})`,
      }),
    );
    if (stage !== stages[index - 1] && stage !== stages[index - perNode]) {
      if (index % perNode === 0)
        group.append(svg("text", { x, y: y - 3, class: "faint" }, [`${stage}`]));
    }
  }
  const rest = nodes > shown ? `; ${nodes - shown} more nodes are not drawn` : "";
  const says = `${nodes} node${nodes === 1 ? "" : "s"} of ${perNode} GPUs${nodes > 1 ? ", rows are rails" : ""}${rest}`;
  group.append(svg("text", { x: left, y: y + rowsOf(run) * cell + TITLE, class: "faint" }, [says]));
  return group;
}

/** A node that is not full has the rows of its GPUs only. */
function rowsOf({ perNode, stages }: StageRun): number {
  const gpus = stages.reduce((sum, box) => sum + box.devices, 0);
  return Math.min(perNode ?? 0, gpus);
}

function cellOf(perNode: number): number {
  return Math.max(2, Math.min(MOST_CELL, Math.floor(COLUMN_HEIGHT / perNode)));
}
