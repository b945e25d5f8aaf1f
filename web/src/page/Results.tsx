/** All that is known of the plans that were found. */
import { useEffect, useState } from "preact/hooks";
import { OWN_RANK, type Plan, type Reviewed } from "../document";
import { jump } from "./Answer";
import type { CatalogTarget } from "./api";
import { Compare } from "./Compare";
import { Export } from "./Export";
import { Fallen } from "./Fallen";
import type { View } from "./link";
import { OwnPanel } from "./OwnPanel";
import { PlanTable } from "./PlanTable";
import { Breakdown, Front, Memory, Timeline, Topology } from "./pictures";
import { RunPanel } from "./RunPanel";
import type { Request } from "./request";
import { Sensitivity } from "./Sensitivity";
import { WhyNot } from "./WhyNot";

interface Props {
  document: Reviewed;
  plan: Plan;
  /** Whether the search is over: what asks the server waits for that. */
  isFinal: boolean;
  /** Null where nothing can be asked. */
  request: Request | null;
  /** The command line that asks the same. */
  command: readonly string[];
  targets: readonly CatalogTarget[];
  view: View;
  onLook: (change: Partial<View>) => void;
  /** So many times as many GPUs are asked for. */
  onTake: (factor: number) => void;
}

export function Results(props: Props) {
  const { document, plan, isFinal, request, command, targets, view, onLook, onTake } = props;
  // A stage that is pointed out in one picture is in all of them.
  const [stage, setStage] = useState<number | null>(null);
  useEffect(() => setStage(null), [plan]);
  const pointed = { stage, onStage: setStage };
  const choose = (rank: number): void => onLook({ rank });
  const tick = (rank: number, isOn: boolean): void => {
    // A third tick takes the place of the first.
    const others = view.compare.filter((one) => one !== rank);
    onLook({ compare: isOn ? [...others.slice(-1), rank] : others });
  };
  return (
    <>
      {document.review && (
        <OwnPanel
          review={document.review}
          rank={plan.rank}
          onChoose={choose}
          onCompare={() => {
            onLook({ compare: [OWN_RANK, 1] });
            requestAnimationFrame(() => jump("compare-title"));
          }}
        />
      )}
      <div class="pair">
        <div class="stack">
          <Breakdown plan={plan} />
          <Memory plan={plan} {...pointed} />
        </div>
        <Front
          document={document}
          rank={plan.rank}
          onChoose={choose}
          request={isFinal ? request : null}
          onTake={onTake}
        />
      </div>
      <PlanTable
        document={document}
        rank={plan.rank}
        compared={view.compare}
        onChoose={choose}
        onCompare={tick}
      />
      <Compare document={document} ranks={view.compare} onClear={() => onLook({ compare: [] })} />
      {document.notes && document.notes.length > 0 && (
        <section class="panel notes" aria-labelledby="notes-title">
          <h2 id="notes-title">Notes</h2>
          <ul>
            {document.notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </section>
      )}
      <div class="pair">
        <RunPanel document={document} plan={plan} />
        {isFinal && <Fallen search={document.search} />}
      </div>
      <Timeline document={document} plan={plan} isFinal={isFinal} {...pointed} />
      <div class="pair">
        <Topology document={document} plan={plan} {...pointed} />
        {request && !document.review && (
          <WhyNot
            document={document}
            isFinal={isFinal}
            request={request}
            strategy={view.strategy}
            onChange={(strategy) => onLook({ strategy })}
          />
        )}
      </div>
      <Export
        document={document}
        plan={plan}
        targets={targets}
        isFinal={isFinal}
        command={command}
      />
      {document.sensitivity && <Sensitivity changes={document.sensitivity} />}
    </>
  );
}
