/** The plans as a table: click a title to sort, a row to choose it, two boxes to compare. */
import { useMemo, useRef, useState } from "preact/hooks";
import {
  detailText,
  digits,
  duration,
  gpuText,
  padded,
  shortGpu,
  strategyText,
  usd,
} from "../charts/format";
import { fittingScale } from "../charts/scales";
import { listedPlans, OWN_RANK, ownPlan, type Plan, planName, type Reviewed } from "../document";
import { durations, fullest, percent, spotText, whole } from "./format";
import {
  apartText,
  COLUMNS,
  clicked,
  FIRST_ORDER,
  filterOf,
  numGpus,
  sorted,
  twinsText,
} from "./plans";
import { STRATEGY_WORDS, WORDS } from "./words";

interface Props {
  document: Reviewed;
  rank: number;
  compared: readonly number[];
  onChoose: (rank: number) => void;
  onCompare: (rank: number, isOn: boolean) => void;
}

const MOST_ROWS = 200;

/** The front's plans behind the best are listed from the start if they are no more than this. */
const FEW_BEHIND = 30;
/** Pixels: the table is as high as its plans need, filtered or not, so that nothing jumps. */
const HEAD_HEIGHT = 44;
const ROW_HEIGHT = 66;
const MOST_HEIGHT = 428;

export function PlanTable({ document, rank, compared, onChoose, onCompare }: Props) {
  const [order, setOrder] = useState(FIRST_ORDER);
  const [text, setText] = useState("");
  const [wish, setWish] = useState<boolean | null>(null);
  const body = useRef<HTMLTableSectionElement>(null);
  const listed = listedPlans(document);
  const behind = document.plans.length - listed.length;
  const isAll = wish ?? behind <= FEW_BEHIND;
  const filter = useMemo(() => filterOf(text), [text]);
  const listedOrAll = isAll ? document.plans : listed;
  const rows = useMemo(
    () => sorted("mistake" in filter ? listedOrAll : listedOrAll.filter(filter.accepts), order),
    [document, isAll, filter, order],
  );
  const twins = listedOrAll.map(twinsText).filter(Boolean).join("; ");
  const own = useMemo(() => ownPlan(document), [document]);
  // What was brought stays on top, whatever is sorted or filtered.
  const shown = [...(own ? [own] : []), ...rows.slice(0, MOST_ROWS)];
  // Where some take many times as long, intervals are drawn in units of their own middle: on a
  // scale of seconds they would be dots.
  const at = useMemo(() => {
    const seconds = shown.map((plan) => plan.iteration_seconds);
    const isWide = Math.max(...seconds) > WIDE * Math.min(...seconds);
    const unitOf = (plan: Plan): number => (isWide ? plan.iteration_seconds : 1);
    const ends = shown.flatMap((plan) => plan.interval_seconds.map((one) => one / unitOf(plan)));
    const scale = fittingScale(ends, 2, WIDTH - 2);
    return (plan: Plan, value: number): number => scale.at(value / unitOf(plan));
  }, [rows]);
  const mistake = "mistake" in filter ? filter.mistake : "";
  const total = isAll ? document.plans.length : listed.length;
  const hasTypes = new Set(document.plans.flatMap((plan) => Object.keys(plan.gpus))).size > 1;
  // One row is a stop of the tab key; arrows reach the others.
  const stop = shown.some((plan) => plan.rank === rank) ? rank : shown[0]?.rank;

  function pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = (event.target as HTMLElement).closest("tr");
    const now = row ? [...(body.current?.children ?? [])].indexOf(row) : -1;
    const last = shown.length - 1;
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: Math.min(now + 1, last),
      ArrowUp: Math.max(now - 1, 0),
      Home: 0,
      End: last,
    };
    const to = steps[event.key];
    const plan = to === undefined || now < 0 ? undefined : shown[to];
    if (to === undefined || !plan) return;
    event.preventDefault();
    onChoose(plan.rank);
    const isBox = (event.target as HTMLElement).tagName === "INPUT";
    body.current?.children[to]?.querySelector<HTMLElement>(isBox ? "input" : "button")?.focus();
  }

  return (
    <section class="panel plans" aria-labelledby="plans-title">
      <header>
        <h2 id="plans-title">Plans</h2>
        <label class="filter">
          <span class="hidden">Filter the plans</span>
          <input
            id="filter"
            type="search"
            spellcheck={false}
            value={text}
            placeholder="Filter: tp=8 days<30 h100"
            aria-invalid={mistake ? "true" : undefined}
            aria-describedby="filter-message"
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        {behind > 0 && (
          <label class="check">
            <input
              type="checkbox"
              checked={isAll}
              onChange={(event) => setWish(event.currentTarget.checked)}
            />
            with {whole(behind)} more of the front
          </label>
        )}
        <p id="filter-message" class={mistake ? "message mistake" : "message"} aria-live="polite">
          {mistake ||
            `${whole(rows.length)} of ${whole(total)} plans${
              rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : ""
            }. Click one to see it in all pictures; tick two to compare them.`}
        </p>
      </header>
      <section
        class="scroll"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys
        tabIndex={0}
        aria-label="Table of plans"
        style={{
          "--height": `${Math.min(MOST_HEIGHT, HEAD_HEIGHT + ROW_HEIGHT * (total + Number(own !== null)))}px`,
        }}
      >
        <table>
          <thead>
            <tr>
              <th scope="col">
                <span class="hidden">Compare</span>
              </th>
              {COLUMNS.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  class={`${column.key} ${column.isNumber ? "number" : ""}`}
                  aria-sort={
                    order.key !== column.key
                      ? "none"
                      : order.descending
                        ? "descending"
                        : "ascending"
                  }
                >
                  <button
                    type="button"
                    class="sort"
                    title={column.hint}
                    onClick={() => setOrder(clicked(order, column.key))}
                  >
                    {column.title}
                    <span class="arrow" aria-hidden="true">
                      {order.key !== column.key ? "" : order.descending ? "▼" : "▲"}
                    </span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody ref={body} onKeyDown={pressed}>
            {shown.map((plan) => (
              <Row
                key={plan.rank}
                plan={plan}
                apart={apartText(document, plan)}
                isChosen={plan.rank === rank}
                isStop={plan.rank === stop}
                isCompared={compared.includes(plan.rank)}
                at={at}
                hasTypes={hasTypes}
                onChoose={onChoose}
                onCompare={onCompare}
              />
            ))}
          </tbody>
        </table>
      </section>
      {twins && <p class="message">Equal within 0.1 %: {twins}.</p>}
      <details class="words">
        <summary>What do tp, pp, dp mean?</summary>
        <dl>
          {STRATEGY_WORDS.map((word) => (
            <div key={word}>
              <dt>{word}</dt>
              <dd>{WORDS[word]}</dd>
            </div>
          ))}
        </dl>
      </details>
    </section>
  );
}

/** Where a time of a plan is drawn. */
type Place = (plan: Plan, seconds: number) => number;

interface RowProps {
  plan: Plan;
  isChosen: boolean;
  isStop: boolean;
  isCompared: boolean;
  /** What it was made for, where that tells plans apart. */
  apart: string;
  at: Place;
  /** Whether plans differ in their GPUs' types. */
  hasTypes: boolean;
  onChoose: (rank: number) => void;
  onCompare: (rank: number, isOn: boolean) => void;
}

function Row(props: RowProps) {
  const { plan, isChosen, isStop, isCompared, at, hasTypes, onChoose, onCompare } = props;
  const spot = spotText(plan);
  const name = strategyText(plan.strategy);
  const cost = plan.usd_total ?? null;
  const isMixed = Object.keys(plan.gpus).length > 1;
  return (
    <tr
      class={`${isChosen ? "chosen" : ""} ${plan.rank === OWN_RANK ? "yours" : ""}`}
      aria-current={isChosen ? "true" : undefined}
      onClick={() => onChoose(plan.rank)}
    >
      <td>
        <input
          type="checkbox"
          checked={isCompared}
          tabIndex={isStop ? 0 : -1}
          aria-label={`Compare ${planName(plan.rank)}: ${name}`}
          onClick={(event) => event.stopPropagation()}
          onChange={(event) => onCompare(plan.rank, event.currentTarget.checked)}
        />
      </td>
      <td class="number">{plan.rank === OWN_RANK ? "yours" : plan.rank}</td>
      <td class="strategy">
        <button type="button" class="link" tabIndex={isStop ? 0 : -1} aria-pressed={isChosen}>
          {name}
        </button>
        {props.apart && <small>{props.apart}</small>}
        <small>{detailText(plan.strategy)}</small>
        {spot && <small class="spot">{spot}</small>}
        {!plan.fits && <small class="mistake">⚠ does not fit</small>}
      </td>
      <td class="number gpus" title={gpuText(plan.gpus)}>
        {whole(numGpus(plan))}
        {hasTypes &&
          Object.entries(plan.gpus).map(([gpu, count]) => (
            <small key={gpu}>
              {isMixed && `${count} `}
              {shortGpu(gpu)}
            </small>
          ))}
      </td>
      <td class="number">
        <Interval plan={plan} at={at} />
        {padded(duration(plan.iteration_seconds))}
      </td>
      <td class="number">{whole(plan.tokens_per_second)}</td>
      <td class="number mfu">{percent(plan.mfu)}</td>
      <td class={plan.fits ? "number" : "number mistake"}>{percent(fullest(plan))}</td>
      <td class="number">
        {plan.train_seconds === null ? "–" : padded(duration(plan.train_seconds))}
      </td>
      <td class="number">
        {cost === null
          ? plan.usd_per_hour === null
            ? "–"
            : `$${digits(plan.usd_per_hour)}/h`
          : padded(usd(cost))}
      </td>
    </tr>
  );
}

const WIDTH = 48;
const WIDE = 2;
const HEIGHT = 12;

/** From the shortest to the longest time that is expected, on the scale of all rows. */
function Interval({ plan, at }: { plan: Plan; at: Place }) {
  const [from, to] = plan.interval_seconds;
  const [left, right] = [at(plan, from), at(plan, to)];
  const middle = HEIGHT / 2;
  return (
    <svg class="interval" width={WIDTH} height={HEIGHT} role="img" aria-label={durations(from, to)}>
      <title>{durations(from, to)}</title>
      <line x1={left} x2={right} y1={middle} y2={middle} />
      <line x1={left} x2={left} y1={middle - 3} y2={middle + 3} />
      <line x1={right} x2={right} y1={middle - 3} y2={middle + 3} />
      <circle cx={at(plan, plan.iteration_seconds)} cy={middle} r={3} />
    </svg>
  );
}
