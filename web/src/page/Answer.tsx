/** The answer in a sentence and large figures, where to go on, and how the search stands. */
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { amount, detailText, digits, duration, gpuText, strategyText, usd } from "../charts/format";
import { OWN_RANK, type Plan, type PlanDocument, type Reviewed } from "../document";
import { IS_SHARED, type Progress, type Repair } from "./api";
import { inputOf } from "./fields";
import {
  chance,
  choiceText,
  durations,
  fullest,
  offerText,
  percent,
  plainWords,
  whole,
} from "./format";
import { apartText } from "./plans";
import type { Found } from "./search";
import { Term } from "./Term";
import { tradesOf } from "./trades";
import type { Word } from "./words";

interface Props {
  found: Found;
  plan: Plan | null;
  /** The best plan of the answer before. */
  last: Plan | null;
  /** What the model is called where the document does not know. */
  modelName: string | null;
  /** The field that a mistake is told beside. */
  field: string | null;
  onCancel: () => void;
  onAgain: () => void;
  onChoose: (rank: number) => void;
  onCompare: (ranks: number[]) => void;
  onRepair: (repair: Repair) => void;
}

export function Answer(props: Props) {
  const { found, plan, field, onCancel, onAgain, onRepair } = props;
  const isSearching = ["searching", "partial"].includes(found.state);
  // While who made a mistake types on, it stays told.
  const isRefused = found.error !== null && !found.isCurrent;
  const input = field === null ? null : inputOf(field);
  const text = statusText(found, field !== null);
  // A refusal is as high as the answer that it takes the place of: nothing below must jump.
  const box = useRef<HTMLElement>(null);
  const height = useRef(0);
  useLayoutEffect(() => {
    if (found.state === "done") height.current = box.current?.offsetHeight ?? 0;
  }, [found.state, plan]);
  return (
    <section
      class="panel answer"
      ref={box}
      aria-labelledby="answer-title"
      data-state={found.state}
      style={{ minHeight: isRefused && height.current ? `${height.current}px` : "" }}
    >
      <h2 id="answer-title" class="hidden">
        Answer
      </h2>
      {isRefused ? null : plan && found.document ? (
        <>
          <Figures {...props} document={found.document} plan={plan} />
          <Trades {...props} document={found.document} plan={plan} />
          <Jumps isAsked={!(found.document.review || IS_SHARED)} />
        </>
      ) : (
        <>
          <div class="figures" aria-hidden="true">
            <p class="lead">…</p>
          </div>
          <div class="trades" />
          <div class="jumps" />
        </>
      )}
      {/* Read out where it stays; what is seen comes anew in its other place. */}
      <p aria-live="polite" role="status" class="hidden">
        {text}
      </p>
      <div key={isRefused ? "refused" : "status"} class={isRefused ? "status refused" : "status"}>
        <p aria-hidden="true" class={found.error ? "mistake" : ""}>
          {found.error && "⚠ "}
          {text}
          {isSearching && elapsed(found.progress)}
        </p>
        <progress
          aria-label="Progress of the search"
          class={isSearching ? "" : "off"}
          {...progressOf(found)}
        />
        {isRefused &&
          found.error?.repairs.map((repair) => (
            <button
              type="button"
              class="repair"
              key={repair.label}
              onClick={() => onRepair(repair)}
            >
              {repair.label}
            </button>
          ))}
        {isRefused && input && (
          <button type="button" onClick={() => document.getElementById(input)?.focus()}>
            Go to the field
          </button>
        )}
        {isSearching || ["idle", "done"].includes(found.state) ? (
          <button
            type="button"
            id="cancel"
            class={isSearching ? "" : "off"}
            disabled={!isSearching}
            title="Escape cancels, too"
            onClick={onCancel}
          >
            Cancel
          </button>
        ) : (
          <button type="button" id="again" onClick={onAgain}>
            Search again
          </button>
        )}
      </div>
    </section>
  );
}

interface FiguresProps extends Pick<Props, "found" | "modelName" | "last"> {
  document: Reviewed;
  plan: Plan;
}

function Figures({ found, document, plan, modelName, last }: FiguresProps) {
  const [low, high] = plan.interval_seconds;
  const speeds = [high, low].map((one) => (plan.tokens_per_second * plan.iteration_seconds) / one);
  const scale = (value: number, by: number): number => (value * by) / plan.iteration_seconds;
  return (
    <div class={found.isCurrent ? "figures" : "figures stale"}>
      <Lead document={document} plan={plan} modelName={modelName} />
      {!IS_SHARED && (
        <button type="button" class="jump to-form" onClick={showForm}>
          Change the question
        </button>
      )}
      <p class="best">
        {planTitle(document, plan, found.state === "done")}:{" "}
        <strong>{strategyText(plan.strategy)}</strong>{" "}
        <small>
          {[apartText(document, plan), detailText(plan.strategy)].filter(Boolean).join(" · ")}
        </small>
      </p>
      <p class="how">{plainWords(plan.strategy)}</p>
      {document.choice?.recommended === plan.rank && document.choice.why.length > 0 && (
        <p class="how">{choiceText(document.choice)}</p>
      )}
      <dl>
        <Figure
          name="Training"
          word="training"
          value={trainingText(plan)}
          was={last && trainingText(last)}
        >
          {plan.train_seconds === null
            ? "give the tokens"
            : durations(
                scale(plan.train_seconds, low),
                scale(plan.train_seconds, high),
                plan.train_seconds,
              )}
        </Figure>
        <Figure name="Cost" word="cost" value={costText(plan)} was={last && costText(last)}>
          {plan.usd_per_hour === null
            ? "give a price"
            : plan.usd_total === null
              ? "give the tokens"
              : `${usd(scale(plan.usd_total, low))} to ${usd(scale(plan.usd_total, high))}`}
        </Figure>
        <Figure name="Tokens a second" word="tokens a second" value={whole(plan.tokens_per_second)}>
          {speeds.map((one) => amount(one ?? 0)).join(" to ")}
        </Figure>
        <Figure name="Iteration" word="iteration" value={duration(plan.iteration_seconds)}>
          {durations(low, high, plan.iteration_seconds)}
        </Figure>
        <Figure name="MFU" word="MFU" value={percent(plan.mfu)}>
          of the peak speed
        </Figure>
        <Figure
          name="Memory"
          word="memory"
          value={percent(fullest(plan))}
          isBad={!plan.fits || (plan.fit_chance ?? 1) < LEAST_CHANCE}
        >
          {plan.fit_chance == null ? "on the fullest GPU" : `${chance(plan.fit_chance)} to fit`}
        </Figure>
      </dl>
      <p class="message">
        Ranges are <Term word="interval">80 % intervals</Term>.
      </p>
    </div>
  );
}

/** What other plans would give and take; a click shows one everywhere. */
function Trades(
  props: Pick<Props, "onChoose" | "onCompare"> & { document: PlanDocument; plan: Plan },
) {
  const { document, plan } = props;
  const trades = useMemo(() => tradesOf(document, plan), [document, plan]);
  const { choice } = document;
  const fastest = choice?.fastest ?? null;
  const isApart = choice && fastest !== null && fastest !== choice.recommended;
  return (
    <div class="trades">
      {plan.rank !== 1 && (
        <button type="button" class="trade" onClick={() => props.onChoose(1)}>
          ← Back to plan 1
        </button>
      )}
      {trades.map(({ rank, text }) => (
        <button
          type="button"
          class="trade"
          key={text}
          title={`Shows plan ${rank}`}
          onClick={() => props.onChoose(rank)}
        >
          {text}
        </button>
      ))}
      {isApart && (
        <button
          type="button"
          class="trade"
          onClick={() => {
            props.onCompare([choice.recommended, fastest]);
            requestAnimationFrame(() => jump("compare-title"));
          }}
        >
          Recommended and fastest side by side
        </button>
      )}
    </div>
  );
}

function Jumps({ isAsked }: { isAsked: boolean }) {
  return (
    <nav class="jumps" aria-label="Parts of this page">
      {JUMPS.filter(([id]) => id !== "whynot-title" || isAsked).map(([id, text]) => (
        <button type="button" key={id} class="jump" onClick={() => jump(id)}>
          {text}
        </button>
      ))}
    </nav>
  );
}

/** What a plan is among those found. */
function planTitle(document: PlanDocument, plan: Plan, isDone: boolean): string {
  const { choice } = document;
  if (plan.rank === choice?.fastest) return plan.rank === 1 ? "Best plan" : "Fastest plan";
  if (plan.rank === choice?.recommended) return "Recommended plan";
  if (plan.rank === OWN_RANK) return "Yours";
  if (plan.rank > 1) return `Plan ${plan.rank}`;
  return isDone ? "Best plan" : "Best so far";
}

/** By the ids of their titles: the address holds the state, so links cannot lead there. */
const JUMPS: readonly (readonly [id: string, text: string])[] = [
  ["plans-title", "All plans"],
  ["timeline-title", "Timeline"],
  ["topology-title", "GPUs and links"],
  ["whynot-title", "Try your own"],
  ["export-title", "Get the files"],
];

function showForm(): void {
  const form = document.querySelector<HTMLElement>("form.panel");
  form?.scrollIntoView({ block: "start" });
  form?.setAttribute("tabindex", "-1");
  form?.focus({ preventScroll: true });
}

export function jump(id: string): void {
  const title = document.getElementById(id);
  title?.closest("section")?.scrollIntoView({ block: "start" });
  // The next tab goes on from there.
  title?.setAttribute("tabindex", "-1");
  title?.focus({ preventScroll: true });
}

/** The answer for those who read only one line. */
function Lead(props: { document: PlanDocument; plan: Plan; modelName: string | null }) {
  const { plan, modelName } = props;
  const { workload } = props.document;
  const offer = offerText(props.document, plan);
  return (
    <p class="lead">
      <b>{modelName ?? workload.model}</b> on <b>{gpuText(plan.gpus, true)}</b>
      {offer && ` (${offer})`}
      {plan.train_seconds === null || (workload.tokens ?? null) === null ? (
        <>
          : <b>{whole(plan.tokens_per_second)} tokens a second</b>
        </>
      ) : (
        <>
          {" "}
          trains {amount(workload.tokens ?? 0)} tokens in <b>{duration(plan.train_seconds)}</b>
        </>
      )}
      {plan.usd_per_hour !== null && (
        <>
          {" "}
          for <b>{costText(plan)}</b>
        </>
      )}
      .
    </p>
  );
}

/** From here on a plan is as likely to fit as not. */
const LEAST_CHANCE = 0.6;

interface FigureProps {
  /** Whether it breaks a limit, or nearly. */
  isBad?: boolean;
  /** Its value in the answer before. */
  was?: string | null;
  name: string;
  word: Word;
  value: string;
  children: preact.ComponentChildren;
}

function Figure(props: FigureProps) {
  return (
    <div>
      <dt>
        <Term word={props.word}>{props.name}</Term>
        {props.was && props.was !== props.value && <span class="was"> was {props.was}</span>}
      </dt>
      <dd>
        <b class={props.isBad ? "mistake" : ""}>
          {props.isBad && <span aria-hidden="true">⚠ </span>}
          {props.value}
        </b>
        <small>{props.children}</small>
      </dd>
    </div>
  );
}

function trainingText(plan: Plan): string {
  return plan.train_seconds === null ? "–" : duration(plan.train_seconds);
}

function costText(plan: Plan): string {
  if (plan.usd_total !== null) return usd(plan.usd_total);
  return plan.usd_per_hour === null ? "–" : `$${digits(plan.usd_per_hour)}/h`;
}

function progressOf(found: Found): { max: number; value?: number } {
  const { progress } = found;
  if (found.state === "done") return { max: 1, value: 1 };
  if (found.state === "failed" || found.state === "cancelled") return { max: 1, value: 0 };
  // Without a value the bar only says that something is under way.
  return progress && progress.total > 1
    ? { max: progress.total, value: Math.min(progress.done, progress.total) }
    : { max: 1 };
}

function elapsed(progress: Progress | null): string {
  return progress && progress.seconds >= 0.1 ? ` ${digits(progress.seconds, 2)} s` : "";
}

function refusalText({ error, isCurrent }: Found, isToldInForm: boolean): string {
  const message = error?.message ?? "";
  // Further lines point at a place in what was typed, which stands there.
  if (isToldInForm) return `See the form: ${message.split("\n")[0] ?? ""}`;
  return isCurrent ? `${message}\nThe best so far is shown.` : message;
}

function statusText(found: Found, isToldInForm: boolean): string {
  const { document, progress, error } = found;
  const search = document?.search;
  switch (found.state) {
    case "idle":
      return "Paste a launch script or configuration, or choose its file.";
    case "searching":
      if (error) return refusalText(found, isToldInForm);
      return progress?.phase === "waiting" && progress.total > 0
        ? `Waiting: ${progress.total} others are searched first …`
        : "Searching …";
    case "partial":
      return "The best so far; searching …";
    case "cancelled":
      return found.isCurrent ? "Cancelled; there may be better plans." : "Cancelled.";
    case "failed":
      return refusalText(found, isToldInForm);
    case "done": {
      if (!document || !search) return "";
      const proof = search.optimal
        ? "the first is proven the best"
        : `within ${percent(search.bound_gap)} of the best possible`;
      return `${whole(document.plans.length)} plans out of ${amount(search.space)} in ${duration(search.seconds)}; ${proof}.`;
    }
  }
}
