/** Why the other strategies are no answer: by cause, down to the rule. */
import { amount } from "../charts/format";
import type { PlanDocument } from "../document";
import { whole } from "./format";
import { Bar, shareText } from "./RunPanel";

const CAUSES: Readonly<Record<string, string>> = {
  bound: "proven no better, without a price",
  slower: "priced, and no better",
  memory: "do not fit in memory",
  runtime: "refused by the runtime",
  rule: "dropped by your rules",
  budget: "over the budget",
  deadline: "past the deadline",
  dominated: "the same with an overlap switched off",
};

export function Fallen({ search }: { search: PlanDocument["search"] }) {
  if (!search || search.space === 0) return null;
  const counts = Object.entries(search.rejected)
    .filter(([, count]) => count > 0)
    .sort(([, one], [, other]) => other - one);
  const rules = Object.entries(search.reasons).sort(([, one], [, other]) => other - one);
  return (
    <section class="panel fallen" aria-labelledby="fallen-title">
      <header>
        <h2 id="fallen-title">Why the rest fell out</h2>
        <p class="message">
          {amount(search.space)} strategies; {whole(search.evaluated)} were priced one by one.
        </p>
      </header>
      <Bar
        parts={counts.map(([cause, count]) => ({
          name: CAUSES[cause] ?? cause.replaceAll("_", " "),
          share: count / search.space,
          value: amount(count),
        }))}
      />
      {rules.length > 0 && (
        <details>
          <summary>Rules that refused most</summary>
          <table>
            <thead>
              <tr>
                <th scope="col">Rule</th>
                <th scope="col" class="number">
                  Strategies
                </th>
                <th scope="col" class="number">
                  Share
                </th>
              </tr>
            </thead>
            <tbody>
              {rules.map(([rule, count]) => (
                <tr key={rule}>
                  <th scope="row">{rule.replaceAll("_", " ")}</th>
                  <td class="number">{amount(count)}</td>
                  <td class="number">{shareText(count / search.space)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </details>
      )}
    </section>
  );
}
