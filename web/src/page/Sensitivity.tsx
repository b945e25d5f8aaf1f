/** Which price or network would change the answer. */
import { bandwidth, digits, gpuText } from "../charts/format";
import type { Sensitivity as Change } from "../document";
import { dollars } from "./format";

export function Sensitivity({ changes }: { changes: readonly Change[] }) {
  return (
    <section class="panel" aria-labelledby="sensitivity-title">
      <h2 id="sensitivity-title">What would change the answer</h2>
      <ul>
        {changes.map((change) => (
          <li key={sentence(change)}>{sentence(change)}</li>
        ))}
      </ul>
    </section>
  );
}

export function sentence(change: Change): string {
  const amount = (value: number): string =>
    change.what === "price" ? `${dollars(value)} a GPU and hour` : bandwidth(value);
  const what = `${change.what} of ${change.pool}, now ${amount(change.value_now)}`;
  if (change.factor === null || change.value_then === null) {
    const farthest = change.unchanged_to ?? 1;
    const to = `${farthest < 1 ? "down" : "up"} to ${digits(farthest)} times that`;
    return `${what}: no change of the answer ${to}.`;
  }
  const then = Object.keys(change.gpus_then).length
    ? gpuText(change.gpus_then)
    : "no plan within the limits";
  return `${what}: at ${amount(change.value_then)} (× ${digits(change.factor)}) it becomes ${then}.`;
}
