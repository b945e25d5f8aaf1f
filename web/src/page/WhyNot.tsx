/** "Why not?": a strategy of one's own, its estimate and its place, or what forbids it. */
import { useEffect, useState } from "preact/hooks";
import { duration, strategyText, usd } from "../charts/format";
import type { Plan, PlanDocument } from "../document";
import { type Verdict, whyNot } from "./api";
import { durations, fullest, percent, whole } from "./format";
import { rankAmong } from "./plans";
import { choosesGpus, onGpusOf, type Request } from "./request";
import { useAnswer } from "./useAnswer";

interface Props {
  /** Null where the search found no plan. */
  document: PlanDocument | null;
  isFinal: boolean;
  request: Request;
  strategy: string;
  onChange: (strategy: string) => void;
}

export function WhyNot({ document, isFinal, request, strategy, onChange }: Props) {
  const [typed, setTyped] = useState(strategy);
  // Another link, or Back.
  useEffect(() => {
    if (strategy !== typed.trim()) setTyped(strategy);
  }, [strategy]);
  useEffect(() => {
    const timer = setTimeout(() => onChange(typed.trim()), 300);
    return () => clearTimeout(timer);
  }, [typed]);
  const best = document?.plans[0];
  const answered = useAnswer(
    strategy === "" || !isFinal || (!best && choosesGpus(request))
      ? null
      : (signal) => whyNot(best ? onGpusOf(best, request) : request, strategy, signal),
    [document, request, isFinal, strategy],
  );
  return (
    <section class="panel whynot" aria-labelledby="whynot-title">
      <h2 id="whynot-title">Why not …?</h2>
      <label for="strategy">
        A strategy of your own, on{" "}
        {best && choosesGpus(request) ? "the GPUs of plan 1" : "all of the GPUs"}
      </label>
      <input
        id="strategy"
        type="text"
        spellcheck={false}
        autocomplete="off"
        value={typed}
        placeholder={best ? exampleOf(best) : "tp=8,pp=4"}
        aria-describedby="strategy-message"
        aria-invalid={answered.error ? "true" : undefined}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      <div class="verdict" aria-live="polite" id="strategy-message">
        {answered.error ? (
          <p class="mistake">
            <span aria-hidden="true">⚠ </span>
            {answered.error.message}
          </p>
        ) : answered.value ? (
          <Verdicts {...answered.value} listed={document} />
        ) : (
          <p class="message">
            {answered.isWaiting
              ? "Estimating …"
              : "Such as tp=8,pp=4,micro_batch=1,recompute=full. What is left out is chosen as Megatron would."}
          </p>
        )}
      </div>
    </section>
  );
}

interface VerdictProps extends Verdict {
  listed: PlanDocument | null;
}

function Verdicts({ document, broken, listed }: VerdictProps) {
  const own = document?.plans[0];
  const best = listed?.plans[0];
  return (
    <>
      {broken.map((reason) => (
        <p class="mistake" key={reason}>
          <span aria-hidden="true">⚠ </span>
          {reason}
        </p>
      ))}
      {own && best && broken.length === 0 && <p>{placeText(own, best, listed)}</p>}
      {own && <Estimate own={own} />}
    </>
  );
}

function placeText(own: Plan, best: Plan, listed: PlanDocument): string {
  const rank = rankAmong(own, listed.plans, listed.search?.objective ?? "throughput");
  const place =
    rank > listed.plans.length
      ? `It runs, behind all ${listed.plans.length} plans listed`
      : `It runs, and would be number ${rank}`;
  const slower = own.iteration_seconds / best.iteration_seconds;
  const than = slower > 1.0005 ? `, ${percent(slower - 1)} slower than the best plan` : "";
  return `${place}: ${strategyText(own.strategy)}${than}.`;
}

function Estimate({ own }: { own: Plan }) {
  return (
    <dl class="row">
      <div>
        <dt>Iteration</dt>
        <dd>
          {duration(own.iteration_seconds)} <small>({durations(...own.interval_seconds)})</small>
        </dd>
      </div>
      <div>
        <dt>Tokens/s</dt>
        <dd>{whole(own.tokens_per_second)}</dd>
      </div>
      <div>
        <dt>MFU</dt>
        <dd>{percent(own.mfu)}</dd>
      </div>
      <div>
        <dt>Memory</dt>
        <dd>{percent(fullest(own))}</dd>
      </div>
      {own.usd_total !== null && (
        <div>
          <dt>Cost</dt>
          <dd>{usd(own.usd_total)}</dd>
        </div>
      )}
    </dl>
  );
}

/** A strategy beside the best, as something to try. */
function exampleOf(best: Plan): string {
  const { tp, pp } = best.strategy;
  return tp >= 2 ? `tp=${tp / 2},pp=${pp}` : `tp=2,pp=${pp}`;
}
