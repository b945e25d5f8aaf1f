/** All that is asked. */
import { useEffect, useState } from "preact/hooks";
import type { AskError, Catalog } from "./api";
import { ChoiceField, LinesField, Message, TextField } from "./Field";
import { fieldOf } from "./fields";
import { ModelFields } from "./ModelFields";
import { PoolFields } from "./PoolFields";
import { type Form, isMarketAlone, type RepeatedFlag, type SingleFlag } from "./request";

interface Props {
  form: Form;
  catalog: Catalog | null;
  error: AskError | null;
  /** Who types on is waited for; a choice is made at once. */
  onChange: (form: Form, isChoice?: boolean) => void;
}

interface Texts {
  label: string;
  hint?: string;
  placeholder?: string;
}

const MORE: readonly (readonly [SingleFlag, Texts])[] = [
  ["top", { label: "Plans to list", placeholder: "5" }],
  ["market", { label: "Clouds", hint: "Prices of these; all: every one", placeholder: "aws,gcp" }],
  ["region", { label: "Regions", placeholder: "us, europe, asia" }],
  ["max_gpus", { label: "Most GPUs of a type", hint: "With clouds and no GPU rows" }],
  ["mix", { label: "Most pools in one job" }],
  ["checkpoint_every", { label: "Checkpoint every", placeholder: "30min; empty: best" }],
  ["storage_bandwidth", { label: "Checkpoint bandwidth", placeholder: "1GB/s/node" }],
  ["restart_time", { label: "Restart takes", placeholder: "10min" }],
  ["epochs", { label: "Epochs", hint: "In place of tokens" }],
  ["dataset_tokens", { label: "Tokens of the dataset", hint: "For epochs" }],
  ["rampup_batch", { label: "Batch ramp", placeholder: "START,STEP,SAMPLES" }],
  ["eval_every", { label: "Evaluate every", hint: "Iterations" }],
  ["eval_iterations", { label: "Batches of an evaluation", placeholder: "100" }],
  ["power_price", { label: "Power, $ per kWh", hint: "For machines of your own" }],
  ["power_utilisation", { label: "Power drawn, %", placeholder: "100" }],
  ["co2", { label: "CO₂, kg per kWh" }],
];

const FOLDED: readonly string[] = [
  ...MORE.map(([flag]) => flag),
  "spot",
  "discount",
  "interruptions",
  "sensitivity",
];

export function FormPanel({ form, catalog, error, onChange }: Props) {
  const field = fieldOf(error);
  const [isMore, setMore] = useState(false);
  const isFolded = field !== null && FOLDED.includes(field);
  useEffect(() => {
    if (isFolded) setMore(true);
  }, [isFolded]);

  const change = (part: Partial<Form>): void => onChange({ ...form, ...part });
  const mistake = (name: string): string | undefined =>
    field === name ? error?.message : undefined;
  const single = (flag: SingleFlag) => ({
    id: flag,
    value: form.single[flag] ?? "",
    error: mistake(flag),
    onInput: (value: string) => change({ single: { ...form.single, [flag]: value } }),
  });
  const choice = (flag: SingleFlag, first: string) => ({
    ...single(flag),
    value: form.single[flag] ?? first,
    onInput: (value: string) =>
      onChange({ ...form, single: { ...form.single, [flag]: value } }, true),
  });
  const repeated = (flag: RepeatedFlag) => ({
    id: flag,
    value: form.repeated[flag] ?? "",
    error: mistake(flag),
    onInput: (value: string) => change({ repeated: { ...form.repeated, [flag]: value } }),
  });

  return (
    <form class="panel form" aria-label="What to plan" onSubmit={(event) => event.preventDefault()}>
      <p class="intro">Put in your own: the answer follows.</p>
      <ModelFields form={form} catalog={catalog} error={mistake("model")} onChange={change} />
      <PoolFields
        form={form}
        catalog={catalog}
        field={field}
        error={error?.message}
        onChange={change}
      />
      <fieldset class="grid">
        <legend>Training run</legend>
        <TextField
          {...single("global_batch")}
          label="Global batch"
          hint="Sequences"
          word="global_batch"
        />
        <TextField {...single("seq_length")} label="Sequence length" hint="Tokens each" />
        <TextField {...single("tokens")} label="Tokens in all" hint="Such as 2T, 300B" />
        <ChoiceField
          {...choice("precision", "bf16")}
          label="Precision"
          choices={[
            ["bf16", "bf16"],
            ["fp16", "fp16"],
            ["fp8", "fp8"],
          ]}
        />
      </fieldset>
      <fieldset class="grid">
        <legend>Goal and limits</legend>
        <ChoiceField
          {...choice("objective", "throughput")}
          label="Objective"
          word="objective"
          choices={[
            ["throughput", "Fastest"],
            ["time", "Shortest run"],
            ["cost", "Cheapest run"],
          ]}
        />
        <ChoiceField
          {...choice("mode", "exact")}
          // Of all that clouds offer nobody rents everything, whatever is asked.
          {...(isMarketAlone(form) ? { value: "up-to" } : {})}
          label="GPUs to use"
          word="mode"
          choices={[
            ["exact", "All of them"],
            ["up-to", "Fewer, if better"],
          ]}
        />
        <TextField {...single("budget")} label="Budget, $" hint="At most, such as 200k" />
        <TextField {...single("deadline")} label="Deadline, days" hint="At most" />
        <LinesField
          {...repeated("rule")}
          label="Rules"
          word="rule"
          hint="One a line; drops matches"
          placeholder="$tp > 8"
        />
      </fieldset>
      <details class="more" open={isMore} onToggle={(event) => setMore(event.currentTarget.open)}>
        <summary>More: clouds, spot, checkpoints, power</summary>
        <div class="grid">
          <ChoiceField
            {...choice("spot", "never")}
            label="Spot nodes"
            choices={[
              ["never", "None"],
              ["always", "All"],
              ["mix", "As many as is best"],
            ]}
          />
          {MORE.map(([flag, texts]) => (
            <TextField key={flag} {...single(flag)} {...texts} />
          ))}
          <LinesField
            {...repeated("discount")}
            label="Discounts, %"
            hint="One a line"
            placeholder="aws=30"
          />
          <LinesField
            {...repeated("interruptions")}
            label="Interruptions"
            hint="Of a spot node; one a line"
            placeholder="h100=10%/day"
          />
        </div>
        <label class="check">
          <input
            id="sensitivity"
            type="checkbox"
            aria-describedby="sensitivity-message"
            checked={form.sensitivity}
            onChange={(event) =>
              onChange({ ...form, sensitivity: event.currentTarget.checked }, true)
            }
          />
          Say which price or network would change the answer
        </label>
        <Message id="sensitivity" error={mistake("sensitivity")} />
      </details>
    </form>
  );
}
