/** Two plans side by side: what they choose, and what comes of it. */
import { strategyText } from "../charts/format";
import { OWN_RANK, planOf, type Reviewed } from "../document";
import { type Change, compare } from "./api";
import { causeText, figure } from "./format";
import { useAnswer } from "./useAnswer";

interface Props {
  document: Reviewed;
  ranks: readonly number[];
  onClear: () => void;
}

export function Compare({ document, ranks, onClear }: Props) {
  const [first, second] = [...ranks].sort((one, other) => one - other);
  const answered = useAnswer(
    first !== undefined && second !== undefined
      ? (signal) => compare({ document, rank: first }, { document, rank: second }, signal)
      : null,
    [document, first, second],
  );
  if (first === undefined) return null;
  const name = (rank: number | undefined): string => {
    const plan = rank === undefined ? null : planOf(document, rank);
    return plan
      ? `${plan.rank === OWN_RANK ? "yours" : plan.rank}: ${strategyText(plan.strategy)}`
      : "tick another plan";
  };
  const found = answered.value;
  return (
    <section class="panel compare" aria-labelledby="compare-title">
      <header>
        <h2 id="compare-title">Compare</h2>
        <button type="button" onClick={onClear}>
          Clear
        </button>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys */}
      <section class="scroll" tabIndex={0} aria-label="Table of the comparison">
        <table>
          <thead>
            <tr>
              <th scope="col">
                <span class="hidden">Figure</span>
              </th>
              <th scope="col" class="number">
                {name(first)}
              </th>
              <th scope="col" class="number">
                {name(second)}
              </th>
              <th scope="col" class="number">
                Change
              </th>
            </tr>
          </thead>
          {found && (
            <>
              <tbody>
                {Object.entries(found.choices).map(([key, [one, other]]) => (
                  <tr key={key}>
                    <th scope="row">{key.replaceAll("_", " ")}</th>
                    <td class="number">{one}</td>
                    <td class="number">{other}</td>
                    <td />
                  </tr>
                ))}
              </tbody>
              <Changes title="Result" changes={found.results} unit="" />
              <Changes title="Time" changes={found.time} unit="seconds" />
              <Changes title="Memory of the fullest GPU" changes={found.memory} unit="bytes" />
            </>
          )}
        </table>
      </section>
      <p class={answered.error ? "message mistake" : "message"} aria-live="polite">
        {answered.error?.message ??
          (second === undefined
            ? "Tick a second plan in the table."
            : answered.isWaiting
              ? "Comparing …"
              : "")}
      </p>
    </section>
  );
}

function Changes(props: { title: string; changes: readonly Change[]; unit: string }) {
  const shown = (name: string, value: number | null): string =>
    value === null ? "–" : figure(props.unit || name, value);
  return (
    <tbody>
      <tr class="group">
        <th scope="rowgroup" colSpan={4}>
          {props.title}
        </th>
      </tr>
      {props.changes.map((change) => {
        const [first, second] = [change.first, change.second].map((value) =>
          shown(change.name, value),
        );
        return (
          <tr key={change.name}>
            <th scope="row">{causeText(change.name)}</th>
            <td class="number">{first}</td>
            <td class="number">{second}</td>
            {/* What reads the same is: of almost nothing any share may change. */}
            <td class="number">{first === second ? "same" : changeText(change.change)}</td>
          </tr>
        );
      })}
    </tbody>
  );
}

export function changeText(change: number | null): string {
  if (change === null) return "–";
  if (change >= 2) return `× ${(change + 1).toFixed(1)}`;
  const percent = (change * 100).toFixed(1);
  if (Number(percent) === 0) return "same";
  return `${change > 0 ? "+" : "−"}${percent.replace("-", "")} %`;
}
