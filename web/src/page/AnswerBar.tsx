/** The answer in one line, which stays while one scrolls through the rest. */
import { useEffect, useState } from "preact/hooks";
import { duration, gpuText, usd } from "../charts/format";
import type { Plan } from "../document";
import { jump } from "./Answer";
import { whole } from "./format";

interface Props {
  plan: Plan | null;
  /** The best plan of the answer before. */
  last: Plan | null;
  isStale: boolean;
}

export function AnswerBar({ plan, last, isStale }: Props) {
  const isOut = useOutOfSight(".answer");
  if (!plan || !isOut) return null;
  return (
    <section class={isStale ? "answer-bar stale" : "answer-bar"} aria-label="The answer in short">
      <button type="button" class="link" onClick={() => jump("answer-title")}>
        <b>{gpuText(plan.gpus, true)}</b>
      </button>
      {figuresOf(plan).map(([name, text]) => {
        const before = last ? new Map(figuresOf(last)).get(name) : undefined;
        return (
          <span key={name}>
            {before !== undefined && before !== text && <small>{before} → </small>}
            {text}
          </span>
        );
      })}
    </section>
  );
}

function figuresOf(plan: Plan): [name: string, text: string][] {
  const figures: [string, string][] = [["speed", `${whole(plan.tokens_per_second)} tokens/s`]];
  if (plan.train_seconds !== null) figures.unshift(["time", duration(plan.train_seconds)]);
  if (plan.usd_total !== null) figures.splice(1, 0, ["money", usd(plan.usd_total)]);
  return figures;
}

function useOutOfSight(selector: string): boolean {
  const [isOut, setOut] = useState(false);
  useEffect(() => {
    const place = document.querySelector(selector);
    if (!place || typeof IntersectionObserver === "undefined") return;
    const observer = new IntersectionObserver(([entry]) => setOut(!entry?.isIntersecting));
    observer.observe(place);
    return () => observer.disconnect();
  }, []);
  return isOut;
}
