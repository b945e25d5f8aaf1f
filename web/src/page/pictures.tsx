/** The pictures of the page: each with the part of the document that it shows. */

import { useMemo } from "preact/hooks";
import {
  breakdownOf,
  drawBreakdown,
  drawFront,
  drawMemory,
  drawTies,
  drawTimeline,
  drawTopology,
  frontOf,
  haveSameGpus,
  tiesHeight,
  tiesOf,
  topologyOf,
} from "../charts";
import { strategyText } from "../charts/format";
import { memoryRow } from "../charts/memory";
import { rowHeight } from "../charts/timeline";
import {
  gpuOrder,
  listedPlans,
  OWN_RANK,
  type Plan,
  type PlanDocument,
  planName,
  type Reviewed,
  type TimelineDocument,
} from "../document";
import { timeline } from "./api";
import { whole } from "./format";
import { Picture } from "./Picture";
import { apartText } from "./plans";
import type { Request } from "./request";
import { Sweep } from "./Sweep";
import { useAnswer } from "./useAnswer";

/** As high as breakdown and memory beside it. */
const FRONT = 400;

interface FrontProps {
  document: Reviewed;
  rank: number;
  onChoose: (rank: number) => void;
  /** Null where nothing can be asked. */
  request: Request | null;
  /** So many times as many GPUs are asked for. */
  onTake: (factor: number) => void;
}

export function Front(props: FrontProps) {
  // Without a choice of GPUs, money is time.
  return haveSameGpus(props.document) ? <Ties {...props} /> : <TimeAndMoney {...props} />;
}

function Ties({ document, rank, onChoose, request, onTake }: FrontProps) {
  const data = useMemo(() => {
    const shown = listedPlans(document);
    const names = shown.map(({ strategy }) => strategyText(strategy));
    // Where degrees do not tell them apart, the micro-batch may.
    const nameOf = (plan: Plan): string => {
      const { rank, strategy } = plan;
      const text = strategyText(strategy);
      const apart = apartText(document, plan);
      const isOnly = names.filter((name) => name === text).length < 2;
      const more = isOnly ? "" : ` · ${apart || `micro ${strategy.micro_batch}`}`;
      return `${rank === OWN_RANK ? "–" : rank}  ${text}${more}`;
    };
    return tiesOf(document, shown, nameOf);
  }, [document]);
  return (
    <Picture
      id="front"
      title="Which plans are really faster"
      draw={(place, data) => drawTies(place, data, onChoose)}
      data={data}
      selected={rank}
      height={tiesHeight(data.length)}
    >
      {request?.pools !== undefined && <Sweep request={request} onTake={onTake} />}
    </Picture>
  );
}

function TimeAndMoney({ document, rank, onChoose }: FrontProps) {
  const data = useMemo(() => frontOf(document), [document]);
  const selected = document.plans.findIndex((plan) => plan.rank === rank);
  return (
    <Picture
      id="front"
      title="Time and money"
      // Ranks count from 1 in the order of the plans, in every document.
      draw={(place, data) =>
        drawFront(place, data, { height: FRONT, onSelect: (plan) => onChoose(plan + 1) })
      }
      data={data}
      selected={selected}
      height={FRONT + 40}
    />
  );
}

export function Breakdown({ plan }: { plan: Plan }) {
  const data = useMemo(() => breakdownOf(plan), [plan]);
  return (
    <Picture
      id="breakdown"
      title={`Where the time goes, ${planName(plan.rank)}`}
      draw={drawBreakdown}
      data={data}
      height={196}
    />
  );
}

interface StageProps {
  plan: Plan;
  /** The stage that is pointed out. */
  stage: number | null;
  onStage: (stage: number) => void;
}

export function Memory({ plan, stage, onStage }: StageProps) {
  return (
    <Picture
      id="memory"
      title={`Memory of each stage, ${planName(plan.rank)}`}
      draw={(place, data) => drawMemory(place, data, { onSelect: onStage })}
      data={plan.memory}
      selected={stage}
      height={plan.memory.length * memoryRow(plan.memory.length) + 70}
    />
  );
}

interface TimelineProps extends StageProps {
  document: PlanDocument;
  isFinal: boolean;
}

export function Timeline({ document, plan, isFinal, stage, onStage }: TimelineProps) {
  const answered = useAnswer(
    isFinal ? (signal) => timeline({ document, rank: plan.rank }, signal) : null,
    [document, plan.rank, isFinal],
  );
  const gpus = gpuOrder(document);
  return (
    <Picture
      // Colours of other types: another picture.
      key={gpus.join()}
      id="timeline"
      title={`Timeline of an iteration, ${planName(plan.rank)}`}
      about={
        <p class={answered.error ? "message mistake" : "message"}>
          {answered.error?.message ??
            (answered.value ? leftOutText(answered.value) : "Simulating …")}
        </p>
      }
      draw={(place, data) => drawTimeline(place, data, { gpus, onSelect: onStage })}
      data={answered.value}
      selected={stage}
      height={plan.memory.length * rowHeight(plan.memory.length) + 90}
    />
  );
}

function leftOutText({ left_out = 0 }: TimelineDocument): string {
  return left_out > 0
    ? `Hatched: ${whole(left_out)} passes and transfers of the middle, which repeats itself, are left out.`
    : "";
}

interface TopologyProps extends StageProps {
  document: PlanDocument;
}

export function Topology({ document, plan, stage, onStage }: TopologyProps) {
  const data = useMemo(() => topologyOf(document, plan), [document, plan]);
  return (
    <Picture
      id="topology"
      title={`Which GPUs hold which stage, ${planName(plan.rank)}`}
      draw={(place, data) => drawTopology(place, data, { onSelect: onStage })}
      data={data}
      selected={stage}
      height={260}
    />
  );
}
