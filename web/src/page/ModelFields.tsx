/** The model: a name of the catalog, or the config.json of one's own. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { amount } from "../charts/format";
import type { Catalog, CatalogModel } from "./api";
import { Combobox } from "./Combobox";
import { Message } from "./Field";
import { MOST_LETTERS } from "./OwnFields";
import { type Form, isObject } from "./request";

interface Props {
  form: Form;
  catalog: Catalog | null;
  error: string | undefined;
  onChange: (change: Partial<Form>) => void;
  /** A file that is no config.json: a launch script, or a configuration of another program. */
  onText: (name: string, text: string) => void;
}

const MOST_BYTES = 1_000_000;

export function ModelFields({ form, catalog, error, onChange, onText }: Props) {
  const picker = useRef<HTMLInputElement>(null);
  const [mistake, setMistake] = useState("");
  const [isOver, setOver] = useState(false);
  const suggestions = useMemo(
    () =>
      // Families in the order of the catalog, each with all of its models.
      grouped(catalog?.models ?? []).map((model) => ({
        value: model.name,
        group: model.family,
        others: [...model.aliases, model.family],
        about: model.parameters ? `${amount(model.parameters)}, ${model.layers} layers` : "",
      })),
    [catalog],
  );
  const known = catalog?.models.find(
    ({ name, aliases }) => name === form.model || aliases.includes(form.model),
  );
  const hint = form.config
    ? "Read in this browser, and sent to this server only."
    : known?.parameters
      ? `${amount(known.parameters)} parameters, ${known.layers} layers, up to ${known.max_seq_length ?? "?"} tokens`
      : form.own
        ? "Where the script does not state it."
        : "Search the catalog, or drop a config.json here.";

  async function read(file: File | undefined): Promise<void> {
    if (!file) return;
    if (!/\.json$/i.test(file.name) && file.size <= MOST_LETTERS) {
      onText(file.name, await file.text());
      return;
    }
    const config = await configOf(file);
    setMistake(typeof config === "string" ? config : "");
    if (typeof config !== "string") onChange({ config, configName: file.name });
  }

  // Wherever a file is dropped: the browser would open it in place of the page.
  useEffect(() => {
    const listeners = {
      dragover: (event: DragEvent) => {
        event.preventDefault();
        setOver(true);
      },
      dragleave: () => setOver(false),
      drop: (event: DragEvent) => {
        event.preventDefault();
        setOver(false);
        void read(event.dataTransfer?.files[0]);
      },
    };
    const all = Object.entries(listeners) as [keyof typeof listeners, EventListener][];
    for (const [name, listener] of all) document.addEventListener(name, listener);
    return () => {
      for (const [name, listener] of all) document.removeEventListener(name, listener);
    };
  });

  return (
    <fieldset class={isOver ? "over" : ""}>
      <legend>Model</legend>
      <div class="side">
        {form.config ? (
          <p class="chip" title={form.configName}>
            <span>{form.configName}</span>
            <button
              type="button"
              aria-label={`Remove ${form.configName}`}
              onClick={() => onChange({ config: null, configName: "" })}
            >
              ✕
            </button>
          </p>
        ) : (
          <Combobox
            id="model"
            label="Model"
            value={form.model}
            suggestions={suggestions}
            placeholder="such as llama-3-8b"
            describedBy="model-message"
            isWrong={Boolean(error)}
            onInput={(model) => onChange({ model })}
          />
        )}
        <button
          type="button"
          // Where a mistake leads to: the name of a model is not asked for beside a file.
          id={form.config ? "model" : undefined}
          aria-describedby={form.config ? "model-message" : undefined}
          onClick={() => picker.current?.click()}
        >
          {form.config ? "Another…" : "Own config.json…"}
        </button>
      </div>
      <input
        ref={picker}
        id="config-file"
        type="file"
        accept=".json,application/json"
        aria-label="A config.json of your own"
        hidden
        onChange={(event) => {
          void read(event.currentTarget.files?.[0]);
          event.currentTarget.value = "";
        }}
      />
      <Message id="model" hint={hint} error={mistake || error} />
    </fieldset>
  );
}

function grouped(models: readonly CatalogModel[]): CatalogModel[] {
  const families = [...new Set(models.map((model) => model.family))];
  return families.flatMap((family) => models.filter((model) => model.family === family));
}

/** The content of a file, or what is wrong with it. */
export async function configOf(file: File): Promise<Record<string, unknown> | string> {
  if (file.size > MOST_BYTES) return `${file.name} has ${file.size} bytes; a config.json has few`;
  try {
    const content: unknown = JSON.parse(await file.text());
    return isObject(content) ? content : `${file.name} holds no JSON object; a config.json does`;
  } catch {
    return `${file.name} is not JSON; expected the config.json of a model`;
  }
}
