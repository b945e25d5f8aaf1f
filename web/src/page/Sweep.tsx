/** The best plans for fewer and more of the same GPUs; a click takes one. */
import { useEffect, useState } from "preact/hooks";
import { duration, gpuText, usd } from "../charts/format";
import type { Plan } from "../document";
import { bestPlan } from "./api";
import { whole } from "./format";
import type { Request } from "./request";
import { useAnswer } from "./useAnswer";

const FACTORS = [0.25, 0.5, 2, 4] as const;

interface Props {
  request: Request;
  onTake: (factor: number) => void;
}

export function Sweep({ request, onTake }: Props) {
  const [isAsked, setAsked] = useState(false);
  useEffect(() => setAsked(false), [request]);
  const answered = useAnswer(isAsked ? (signal) => swept(request, signal) : null, [
    request,
    isAsked,
  ]);
  if (!answered.value) {
    return (
      <p class="message">
        <button type="button" disabled={isAsked} onClick={() => setAsked(true)}>
          {answered.isWaiting ? "Searching …" : "What would fewer or more GPUs do?"}
        </button>{" "}
        {answered.error?.message}
      </p>
    );
  }
  return (
    <ul class="sweep">
      {answered.value.map(({ factor, best }) => (
        <li key={factor}>
          {best ? (
            <button type="button" class="trade" onClick={() => onTake(factor)}>
              {gpuText(best.gpus, true)}: {figures(best)}
            </button>
          ) : (
            `${factor} times as many: no plan`
          )}
        </li>
      ))}
    </ul>
  );
}

interface Swept {
  factor: number;
  best: Plan | null;
}

/** One after the other: the page's own search must not wait behind all of them. */
async function swept(request: Request, signal: AbortSignal): Promise<Swept[]> {
  const found: Swept[] = [];
  for (const factor of FACTORS) {
    const pools = scaled(request.pools, factor);
    if (pools) found.push({ factor, best: await bestPlan({ ...request, pools, top: 1 }, signal) });
  }
  return found;
}

/** The rows with so many times their GPUs; null where that is no whole number of them. */
export function scaled<Row extends { count?: unknown }>(rows: unknown, factor: number) {
  const more = (rows as Row[]).map((row) => ({
    ...row,
    count: String(Number(row.count) * factor),
  }));
  return more.every((row) => Number.isInteger(Number(row.count))) ? more : null;
}

function figures(plan: Plan): string {
  const time =
    plan.train_seconds === null
      ? `${whole(plan.tokens_per_second)} tokens/s`
      : duration(plan.train_seconds);
  return plan.usd_total === null ? time : `${time}, ${usd(plan.usd_total)}`;
}
