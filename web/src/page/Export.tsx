/** What starts the chosen plan, for every target; and the plan itself. */
import { useEffect, useState } from "preact/hooks";
import { duration, padded } from "../charts/format";
import { type Plan, planName, type Reviewed } from "../document";
import {
  AskError,
  type CatalogTarget,
  type Chosen,
  type ExportChoice,
  type Exported,
  exportFiles,
  exportZip,
  type Nearest,
  report,
  targetTimes,
  trace,
} from "./api";
import { changeText } from "./Compare";
import { Copy } from "./Copy";
import { download, fileName } from "./download";
import { csvOf } from "./plans";
import { isObject } from "./request";
import { useAnswer } from "./useAnswer";

interface Props {
  document: Reviewed;
  plan: Plan;
  targets: readonly CatalogTarget[];
  isFinal: boolean;
  /** The command line that asks the same. */
  command: readonly string[];
}

/** "as it is", "nearest, +4 %" or "cannot": what each software makes of the plan. */
function useMarks(chosen: Chosen, isFinal: boolean): Readonly<Record<string, string>> {
  const { value } = useAnswer(isFinal ? (signal) => targetTimes(chosen, signal) : null, [
    chosen.document,
    chosen.rank,
    isFinal,
  ]);
  return Object.fromEntries(
    Object.entries(value?.times ?? {}).map(([name, time]) => [name, markOf(time)]),
  );
}

function markOf(time: number | null): string {
  if (time === null) return "cannot";
  return time === 1 ? "as it is" : `nearest, ${changeText(time - 1)}`;
}

export function Export({ document, plan, targets, isFinal, command }: Props) {
  const [target, setTarget] = useState("megatron");
  const [program, setProgram] = useState("megatron");
  const [files, setFiles] = useState<Exported | null>(null);
  const [error, setError] = useState<AskError | null>(null);
  const [isBusy, setBusy] = useState(false);
  // Files of another plan or target must not stay.
  useEffect(() => {
    setFiles(null);
    setError(null);
  }, [document, plan.rank, target, program]);

  const chosen = { document, rank: plan.rank };
  // The model of a script may be one that no config.json says.
  const isKnown = !document.review || document.workload.model_config != null;
  const marks = useMarks(chosen, isFinal && isKnown);
  const isLauncher = targets.find((one) => one.name === target)?.is_launcher ?? false;
  const choice: ExportChoice = isLauncher ? { target, program } : { target };
  const name = fileName(`${document.workload.model}-${planName(plan.rank)}`.replaceAll(" ", "-"));
  const nearest = error ? nearestOf(error) : null;

  async function ask(work: () => Promise<void>): Promise<void> {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (problem) {
      setFiles(null);
      setError(problem instanceof AskError ? problem : new AskError(String(problem), 0));
    } finally {
      setBusy(false);
    }
  }
  const look = (more: Partial<ExportChoice> = {}): Promise<void> =>
    ask(async () => setFiles(await exportFiles(chosen, { ...choice, ...more })));
  const zip = (more: Partial<ExportChoice> = {}): Promise<void> =>
    ask(async () =>
      download(`${name}-${target}.zip`, await exportZip(chosen, { ...choice, ...more })),
    );

  return (
    <section class="panel export" aria-labelledby="export-title">
      <h2 id="export-title">Start {planName(plan.rank)}</h2>
      <p class="message">
        {isKnown
          ? "Files that start it, for the software that you train with."
          : "No config.json says what your script trains: put one in as the model to get files."}
      </p>
      <div class="bar" hidden={!isKnown}>
        <label for="target">Files for</label>
        <select
          id="target"
          value={target}
          onChange={(event) => setTarget(event.currentTarget.value)}
        >
          {targets.map((one) => (
            <option key={one.name} value={one.name}>
              {one.title} {one.version}
              {marks[one.name] && ` – ${marks[one.name]}`}
            </option>
          ))}
        </select>
        {isLauncher && (
          <>
            <label for="program">starting</label>
            <select
              id="program"
              value={program}
              onChange={(event) => setProgram(event.currentTarget.value)}
            >
              {targets
                .filter((one) => !one.is_launcher)
                .map((one) => (
                  <option key={one.name} value={one.name}>
                    {one.title} {one.version}
                    {marks[one.name] && ` – ${marks[one.name]}`}
                  </option>
                ))}
            </select>
          </>
        )}
        <button type="button" disabled={isBusy} onClick={() => void zip()}>
          Download zip
        </button>
        <button type="button" disabled={isBusy} onClick={() => void look()}>
          Look at the files
        </button>
      </div>
      <div class="bar">
        <button
          type="button"
          disabled={isBusy}
          onClick={() =>
            void ask(async () => download(`${name}.html`, await report(chosen, command)))
          }
        >
          Report to mail
        </button>
        <button
          type="button"
          onClick={() => {
            const { review: _, ...plans } = document;
            const text = JSON.stringify(plans, null, 2);
            download(`${name}.json`, new Blob([text], { type: "application/json" }));
          }}
        >
          Plans as JSON
        </button>
        <button
          type="button"
          onClick={() => download(`${name}.csv`, new Blob([csvOf(document)], { type: "text/csv" }))}
        >
          Plans as CSV
        </button>
        <button
          type="button"
          disabled={isBusy}
          onClick={() =>
            void ask(async () => download(`${name}-trace.json.gz`, await trace(chosen)))
          }
        >
          Trace for Perfetto
        </button>
      </div>
      <div class="outcome" aria-live="polite">
        {error && (
          <div class="refused">
            <pre class="mistake">{withoutWayOut(error.message)}</pre>
            {nearest && (
              <p>
                The nearest plan that it can express: {changesText(nearest)}; predicted{" "}
                {padded(duration(nearest.iteration_seconds))} an iteration,{" "}
                {nearest.slower.toFixed(2)} times that of this plan.
              </p>
            )}
            {nearest && (
              <div class="bar">
                <button type="button" disabled={isBusy} onClick={() => void zip({ nearest: true })}>
                  Download the nearest plan
                </button>
                <button
                  type="button"
                  disabled={isBusy}
                  onClick={() => void look({ nearest: true })}
                >
                  Look at its files
                </button>
              </div>
            )}
          </div>
        )}
        {files && <Files exported={files} />}
      </div>
    </section>
  );
}

function Files({ exported }: { exported: Exported }) {
  return (
    <div class="files">
      {exported.nearest && (
        <p>
          Instead of this plan, the nearest for {exported.software}: {changesText(exported.nearest)}
          .
        </p>
      )}
      {exported.command && (
        <p>
          Start it {exported.where ? `${exported.where}: ` : "in its folder: "}
          <code>{exported.command}</code>
        </p>
      )}
      {exported.needs.map((text) => (
        <p key={text}>Needs: {text}</p>
      ))}
      {exported.notes.map((text) => (
        <p key={text}>Note: {text}</p>
      ))}
      {Object.entries(exported.files).map(([name, text]) => (
        <details key={name}>
          <summary>{name}</summary>
          <div class="bar">
            <Copy text={() => text}>Copy</Copy>
            <button
              type="button"
              aria-label={`Download ${name}`}
              onClick={() => download(fileName(name), new Blob([text], { type: "text/plain" }))}
            >
              Download
            </button>
          </div>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keys */}
          <pre tabIndex={0}>{text}</pre>
        </details>
      ))}
    </div>
  );
}

/** "pp 8 → 1", never broken inside. */
function changesText(nearest: Nearest): string {
  return nearest.changed
    .map((change) => change.replace(" -> ", " → ").replaceAll(" ", "\u00a0"))
    .join(", ");
}

/** The buttons are the page's way to say the last line, which names a flag. */
function withoutWayOut(message: string): string {
  return message.replace(/\nThe nearest that it can[\s\S]*$/, "");
}

function nearestOf(error: AskError): Nearest | null {
  const found = error.body.nearest;
  return isObject(found) ? (found as unknown as Nearest) : null;
}
