/** A sweep beside the plans: a table over two of its keys, its front, and the plan of a scenario. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { drawFront } from "../charts";
import { digits, duration, usd } from "../charts/format";
import type { FrontData } from "../charts/front_data";
import type { Pivot, SweepDocument } from "../schema";
import { type SweepAsked, sweep } from "./api";
import { ChoiceField } from "./Field";
import { figure, percent, whole } from "./format";
import { Picture } from "./Picture";
import { type Request, unasked } from "./request";
import { useAnswer } from "./useAnswer";

type Row = Readonly<Record<string, unknown>>;

const DAY = 86400;
const MOST_REASONS = 5;
/** Per cent of colour behind the best cell: more would hide what is written there. */
const MOST_COLOUR = 45;

interface Choice {
  rows?: string;
  columns?: string;
  value?: string;
  /** By key: the only value that is looked at; "" stands for all. */
  where: Readonly<Record<string, string>>;
}

/** Called with the question of the scenario that is chosen; at first of the best one. */
export function Scenarios({ onOpen }: { onOpen: (question: Request) => void }) {
  const [choice, setChoice] = useState<Choice>({ where: {} });
  const [chosen, setChosen] = useState("");
  const all = useAnswer((signal) => sweep({ top: 1 }, signal), []);
  const varies = all.value?.varies ?? {};
  const keys = Object.keys(varies);
  const rows = choice.rows ?? keys[0];
  const columns = choice.columns ?? keys.find((key) => key !== rows);
  const where = Object.entries(choice.where).flatMap(([key, one]) => (one ? `${key}${one}` : []));
  const asked: SweepAsked = { where, top: 1 };
  if (rows) asked.rows = rows;
  if (columns) asked.columns = columns;
  if (choice.value) asked.value = choice.value;
  const answered = useAnswer(all.value && ((signal) => sweep(asked, signal)), [
    JSON.stringify(asked),
    all.value,
  ]);
  // The last table stays until the next one is there.
  const shown = useRef<SweepDocument | null>(null);
  shown.current = answered.value ?? shown.current;
  const document = shown.current;
  const best = all.value?.best[0];
  useEffect(() => {
    if (best && location.hash === "") setChosen(String(best.scenario));
  }, [best]);
  const detail = useAnswer(
    chosen ? (signal) => sweep({ where: [`scenario=${chosen}`], top: 1 }, signal) : null,
    [chosen],
  );
  const row = detail.value?.best[0] ?? null;
  const question = useMemo(() => (row?.question ? JSON.parse(String(row.question)) : null), [row]);
  const missing = question ? unasked(question) : [];
  useEffect(() => {
    if (question && missing.length === 0) onOpen(question);
  }, [question]);
  const error = all.error ?? answered.error ?? detail.error;
  const set = (name: "rows" | "columns" | "value") => (value: string) =>
    setChoice({ ...choice, [name]: value });
  const named = (names: readonly string[]) => names.map((name) => [name, words(name)] as const);
  return (
    <div class="scenarios">
      <section class="panel" aria-labelledby="sweep-title">
        <header>
          <h2 id="sweep-title">Sweep</h2>
          <p class={error ? "message mistake" : "message"} aria-live="polite">
            {error?.message ?? (document ? countsText(document) : "Reading …")}
          </p>
        </header>
        {document && (
          <div class="choices">
            {keys.length > 0 && (
              <ChoiceField
                id="sweep-rows"
                label="Rows"
                value={rows ?? ""}
                choices={named(keys)}
                onInput={set("rows")}
              />
            )}
            {keys.length > 1 && (
              <ChoiceField
                id="sweep-columns"
                label="Columns"
                value={columns ?? ""}
                choices={named(keys.filter((key) => key !== rows))}
                onInput={set("columns")}
              />
            )}
            <ChoiceField
              id="sweep-value"
              label="Figure"
              value={choice.value ?? document.figures[0] ?? ""}
              choices={named(document.figures)}
              onInput={set("value")}
            />
            {keys
              .filter((key) => key !== rows && key !== columns)
              .map((key) => (
                <ChoiceField
                  key={key}
                  id={`sweep-${key}`}
                  label={words(key)}
                  value={choice.where[key] ?? ""}
                  choices={[
                    ["", "the best of all"],
                    ...(varies[key] ?? []).map((one) => [`=${one}`, one || "not given"] as const),
                  ]}
                  onInput={(one) =>
                    setChoice({ ...choice, where: { ...choice.where, [key]: one } })
                  }
                />
              ))}
          </div>
        )}
        {document?.pivot && <Heat pivot={document.pivot} chosen={chosen} onChoose={setChosen} />}
        {row && all.value && (
          <p class="message" aria-live="polite">
            {rowText(row, keys)}{" "}
            {missing.length > 0
              ? `The form has no field for ${missing.join(", ")}: ask on the command line.`
              : "Its plans are below."}
          </p>
        )}
        {document && <Reasons document={document} />}
      </section>
      {document && document.front.length > 1 && (
        <Front document={document} chosen={chosen} onChoose={setChosen} />
      )}
    </div>
  );
}

interface Choosing {
  /** The key of a scenario; "" for none. */
  chosen: string;
  onChoose: (scenario: string) => void;
}

function Heat({ pivot, chosen, onChoose }: Choosing & { pivot: Pivot }) {
  const known = pivot.cells.flat().filter((cell) => cell !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const colour = (value: number): number => {
    const share = high > low ? (value - low) / (high - low) : 1;
    return MOST_COLOUR * (pivot.is_lower_better && high > low ? 1 - share : share);
  };
  const over = [pivot.rows, pivot.columns].filter(Boolean).map(words).join(" and ");
  const best = pivot.is_lower_better ? "lowest" : "highest";
  return (
    <>
      <p>
        {words(pivot.value)} of the best plan by {over}; the {best} is best
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys */}
      <section class="scroll heat" tabIndex={0} aria-label="Table of the sweep">
        <table>
          <thead>
            <tr>
              <th scope="col">{words(pivot.rows)}</th>
              {pivot.column_keys.map((key) => (
                <th key={key} scope="col" class="number">
                  {key || (pivot.columns ? "not given" : words(pivot.value))}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {pivot.row_keys.map((key, index) => (
              <tr key={key}>
                <th scope="row">{key || "not given"}</th>
                {pivot.cells[index]?.map((value, column) => {
                  const scenario = pivot.scenarios[index]?.[column] ?? "";
                  return (
                    <td key={pivot.column_keys[column]}>
                      {value === null ? (
                        "–"
                      ) : (
                        <button
                          type="button"
                          aria-pressed={scenario === chosen}
                          style={{ "--share": `${colour(value)}%` }}
                          onClick={() => onChoose(scenario)}
                        >
                          {figureText(pivot.value, value)}
                        </button>
                      )}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  );
}

function Front({ document, chosen, onChoose }: Choosing & { document: SweepDocument }) {
  const { front, front_is_of_runs } = document;
  const now = useRef(front);
  now.current = front;
  const data = useMemo<FrontData>(() => {
    const kind = (gpus: string): string => gpus.replaceAll(/:\d+/g, "").replaceAll(",", " + ");
    const of = front_is_of_runs ? "the run" : "a billion tokens";
    return {
      points: front.map(({ asked, gpus, seconds, usd: money }, plan) => ({
        plan,
        seconds,
        usd: money,
        secondsInterval: null,
        usdInterval: null,
        isOnFront: true,
        kind: kind(gpus),
        lines: [
          gpus,
          duration(seconds),
          usd(money),
          ...Object.entries(asked).map(([key, value]) => `${words(key)} ${value || "not given"}`),
        ],
      })),
      time: `Time of ${of}`,
      money: `Cost of ${of}`,
      kinds: [...new Set(front.map(({ gpus }) => kind(gpus)))].sort(),
      missing: "",
    };
  }, [front]);
  return (
    <Picture
      id="sweep-front"
      title="Time and money over all scenarios"
      draw={(place, data) =>
        drawFront(place, data, { onSelect: (plan) => onChoose(now.current[plan]?.scenario ?? "") })
      }
      data={data}
      selected={front.findIndex(({ scenario }) => scenario === chosen)}
      height={360}
    />
  );
}

function Reasons({ document }: { document: SweepDocument }) {
  const reasons = Object.entries(document.messages);
  if (reasons.length === 0) return null;
  return (
    <details>
      <summary>Why scenarios have no plan</summary>
      <ul>
        {reasons.slice(0, MOST_REASONS).map(([message, count]) => (
          <li key={message}>
            {whole(count)}: {message}
          </li>
        ))}
        {reasons.length > MOST_REASONS && <li>{reasons.length - MOST_REASONS} more reasons</li>}
      </ul>
    </details>
  );
}

function countsText({ scenarios, status }: SweepDocument): string {
  const counts = Object.entries(status).map(([name, count]) => `${whole(count)} ${name}`);
  return `${whole(scenarios)} scenarios: ${counts.join(", ")}. Click a figure to see its plans.`;
}

/** What was asked, what its plan is, and what it takes. */
function rowText(row: Row, keys: readonly string[]): string {
  const question = keys.map((key) => `${words(key)} ${row[`asked.${key}`] ?? "not given"}`);
  const degrees = ["tp", "pp", "dp", "cp", "ep"].filter((name) => Number(row[name]) > 1);
  const split = degrees.map((name) => `${name} ${row[name]}`).join(" · ") || "one GPU";
  const figures = ["iteration_seconds", "tokens_per_second", "peak_gib", "train_days", "usd_total"];
  const known = figures.filter((name) => typeof row[name] === "number");
  const said = known.map((name) => `${words(name)} ${figureText(name, Number(row[name]))}`);
  return `${question.join(", ")}: ${split}; ${said.join(", ")}.`;
}

function words(name: string): string {
  return name
    .replace(/_(seconds|gib|usd|days)$/, "")
    .replace(/^usd_/, "cost ")
    .replaceAll("_", " ");
}

function figureText(name: string, value: number): string {
  if (name.endsWith("days")) return duration(value * DAY);
  if (name.endsWith("gib")) return `${digits(value)} GiB`;
  if (name.includes("seconds")) return duration(value);
  if (/gap|chance/.test(name)) return percent(value);
  return name === "mfu" || name.startsWith("usd") ? figure(name, value) : whole(value);
}
