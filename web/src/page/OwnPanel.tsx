/** What is thought of a launch script: whether it runs, and what would be better. */
import { duration, gib, strategyText } from "../charts/format";
import { type ImportDocument, OWN_RANK, planName } from "../document";
import { changeText } from "./Compare";
import { chance, percent } from "./format";

interface Props {
  review: ImportDocument;
  rank: number;
  onChoose: (rank: number) => void;
  onCompare: () => void;
}

const MOST_CHANGES = 5;
const PASTED = "pasted";

export function OwnPanel({ review, rank, onChoose, onCompare }: Props) {
  const { fit, conflicts, faster, options } = review;
  const plan = fit?.plan ?? null;
  const [mark, verdict] = verdictOf(review);
  return (
    <section class="panel own" aria-labelledby="own-title">
      <header>
        <h2 id="own-title">
          {review.source === PASTED ? "Your script" : `Your ${review.source}`}, read for{" "}
          {review.program}
        </h2>
      </header>
      <p class={review.runs === true ? "" : "mistake"}>
        <span aria-hidden="true">{mark} </span>
        {verdict}
      </p>
      <Reasons texts={[...conflicts, ...(review.unsure ?? [])]} />
      {plan && (
        <p>
          {conflicts.length > 0 ? "If that were mended: " : ""}
          {strategyText(plan.strategy)}, {duration(plan.iteration_seconds)} an iteration, MFU{" "}
          {percent(plan.mfu)}.{" "}
          {faster !== null && (
            <b>
              {faster > 1.0005
                ? `Plan 1 is ${faster.toFixed(2)} times as fast${under(review)}.`
                : "No plan that was found is faster."}
            </b>
          )}
        </p>
      )}
      {plan && fit && !fit.fits && fit.changes.length > 0 && (
        <>
          <p>Single changes that make it fit:</p>
          <ul>
            {fit.changes.slice(0, MOST_CHANGES).map((change) => (
              <li key={change.text}>
                {change.text} (
                {changeText(change.plan.iteration_seconds / plan.iteration_seconds - 1)} time)
              </li>
            ))}
          </ul>
        </>
      )}
      {plan && (
        <div class="bar">
          <button
            type="button"
            aria-pressed={rank === OWN_RANK}
            onClick={() => onChoose(rank === OWN_RANK ? 1 : OWN_RANK)}
          >
            {rank === OWN_RANK
              ? `Show ${planName(1)} in the pictures`
              : "Show yours in the pictures"}
          </button>
          {review.answer && (
            <button type="button" onClick={onCompare}>
              Compare with plan 1
            </button>
          )}
        </div>
      )}
      <details>
        <summary>
          {options.used.length} options decide, {options.neutral.length} change nothing,{" "}
          {options.unknown.length} are unknown
        </summary>
        <dl class="row">
          {options.used.map(({ option, value, sets }) => (
            <div key={option}>
              <dt>
                {option} {value}
              </dt>
              <dd>{sets}</dd>
            </div>
          ))}
        </dl>
        <Reasons
          texts={options.as_if.map(
            (one) => `${one.option} is ${one.given}; predicted as if ${one.assumed}: ${one.why}`,
          )}
        />
        {options.neutral.length > 0 && <p>Change nothing: {options.neutral.join(", ")}</p>}
        <Reasons texts={options.unknown.map((one) => `${one.option}: ${one.says}`)} />
      </details>
    </section>
  );
}

function Reasons({ texts }: { texts: readonly string[] }) {
  if (texts.length === 0) return null;
  return (
    <ul>
      {texts.map((text) => (
        <li key={text}>{text}</li>
      ))}
    </ul>
  );
}

/** The runtime of plan 1, where yours is predicted under another one. */
function under(review: ImportDocument): string {
  const planned = review.answer?.plans[0]?.runtimes?.[0];
  return planned && planned !== review.runtime
    ? `, under ${planned} instead of ${review.runtime}`
    : "";
}

function verdictOf(review: ImportDocument): [mark: string, text: string] {
  const { fit, conflicts, runs } = review;
  const lack = fit?.excess_bytes ?? 0;
  if (conflicts.length > 0) return ["✗", "It would not start:"];
  if (runs === null) {
    const why = review.unsure?.length
      ? "it says what saves memory:"
      : `such predictions are often too high: the chance is ${chance(fit?.plan?.fit_chance ?? 0)}.`;
    return ["?", `Not sure whether it fits: it does not as predicted, but ${why}`];
  }
  if (runs) return ["✓", `It runs, with ${gib(-lack)} to spare on the fullest GPU.`];
  return ["✗", `It does not fit: the fullest GPU lacks ${gib(lack)}.`];
}
