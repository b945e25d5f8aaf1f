/** All that is asked. */
import { useEffect, useState } from "preact/hooks";
import type { AskError, Catalog } from "./api";
import { ChoiceField, LinesField, Message, TextField } from "./Field";
import { fieldOf } from "./fields";
import { LABELS, MODES, OBJECTIVES, SPOTS } from "./labels";
import { ModelFields } from "./ModelFields";
import { OwnFields } from "./OwnFields";
import { PoolFields } from "./PoolFields";
import { type Form, isMarketAlone, ownForm, type RepeatedFlag, type SingleFlag } from "./request";

interface Props {
  form: Form;
  catalog: Catalog | null;
  error: AskError | null;
  /** Who types on is waited for; a choice is made at once. */
  onChange: (form: Form, isChoice?: boolean) => void;
  /** A launch script of one's own is brought, or (null) taken away. */
  onOwn: (form: Form | null) => void;
}

interface Texts {
  hint?: string;
  placeholder?: string;
}

const MORE: readonly (readonly [SingleFlag, Texts])[] = [
  ["top", { placeholder: "5" }],
  ["market", { hint: "Prices of these; all: every one", placeholder: "aws,gcp" }],
  ["region", { placeholder: "us, europe, asia" }],
  ["max_gpus", { hint: "With clouds and no GPU rows" }],
  ["mix", {}],
  ["checkpoint_every", { placeholder: "30min; empty: best" }],
  ["storage_bandwidth", { placeholder: "1GB/s/node" }],
  ["restart_time", { placeholder: "10min" }],
  ["epochs", { hint: "In place of tokens" }],
  ["dataset_tokens", { hint: "For epochs" }],
  ["rampup_batch", { placeholder: "START,STEP,SAMPLES" }],
  ["eval_every", { hint: "Iterations" }],
  ["eval_iterations", { placeholder: "100" }],
  ["power_price", { hint: "For machines of your own" }],
  ["power_utilisation", { placeholder: "100" }],
  ["co2", {}],
];

const FOLDED: readonly string[] = [
  ...MORE.map(([flag]) => flag),
  "spot",
  "discount",
  "interruptions",
  "sensitivity",
];

export function FormPanel({ form, catalog, error, onChange, onOwn }: Props) {
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
    label: LABELS[flag],
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
    label: LABELS[flag],
    value: form.repeated[flag] ?? "",
    error: mistake(flag),
    onInput: (value: string) => change({ repeated: { ...form.repeated, [flag]: value } }),
  });

  return (
    <form class="panel form" aria-label="What to plan" onSubmit={(event) => event.preventDefault()}>
      {form.own ? (
        <OwnFields
          own={form.own}
          field={field}
          error={error?.message}
          onChange={(own) => change({ own })}
          onRemove={() => onOwn(null)}
        />
      ) : (
        <p class="intro">
          Put in your own: the answer follows. Or{" "}
          <button type="button" class="link" onClick={() => onOwn(ownForm("pasted", "", form))}>
            bring a launch script
          </button>
          , or drop one here.
        </p>
      )}
      <ModelFields
        form={form}
        catalog={catalog}
        error={mistake("model")}
        onChange={change}
        onText={(name, text) => onOwn(ownForm(name, text, form))}
      />
      <PoolFields
        form={form}
        catalog={catalog}
        field={field}
        error={error?.message}
        onChange={change}
      />
      <fieldset class="grid">
        <legend>Training run</legend>
        <TextField {...single("global_batch")} hint="Sequences" word="global_batch" />
        <TextField {...single("seq_length")} hint="Tokens each" />
        <TextField {...single("tokens")} hint="Such as 2T, 300B" />
        {form.own && <TextField {...single("vocab_size")} hint="Entries" />}
        {!form.own && (
          <ChoiceField
            {...choice("precision", "bf16")}
            choices={[
              ["bf16", "bf16"],
              ["fp16", "fp16"],
              ["fp8", "fp8"],
            ]}
          />
        )}
      </fieldset>
      {!form.own && (
        <>
          <fieldset class="grid">
            <legend>Goal and limits</legend>
            <ChoiceField
              {...choice("objective", "throughput")}
              word="objective"
              choices={OBJECTIVES}
            />
            <ChoiceField
              {...choice("mode", "exact")}
              // Of all that clouds offer nobody rents everything, whatever is asked.
              {...(isMarketAlone(form) ? { value: "up-to" } : {})}
              word="mode"
              choices={MODES}
            />
            <TextField {...single("budget")} hint="At most, such as 200k" />
            <TextField {...single("deadline")} hint="At most" />
            <LinesField
              {...repeated("rule")}
              word="rule"
              hint="One a line; drops matches"
              placeholder="$tp > 8"
            />
          </fieldset>
          <details
            class="more"
            open={isMore}
            onToggle={(event) => setMore(event.currentTarget.open)}
          >
            <summary>More: clouds, spot, checkpoints, power</summary>
            <div class="grid">
              <ChoiceField {...choice("spot", "never")} choices={SPOTS} />
              <Clouds
                clouds={catalog?.clouds ?? []}
                value={form.single.market ?? ""}
                onInput={(market) =>
                  onChange({ ...form, single: { ...form.single, market } }, true)
                }
              />
              {MORE.map(([flag, texts]) => (
                <TextField key={flag} {...single(flag)} {...texts} />
              ))}
              <LinesField {...repeated("discount")} hint="One a line" placeholder="aws=30" />
              <LinesField
                {...repeated("interruptions")}
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
        </>
      )}
    </form>
  );
}

/** All clouds as switches; the field below takes them as a text, too. */
function Clouds(props: {
  clouds: readonly string[];
  value: string;
  onInput: (value: string) => void;
}) {
  const { clouds, value, onInput } = props;
  const chosen = value
    .split(",")
    .map((one) => one.trim())
    .filter((one) => one !== "");
  const toggled = (cloud: string): string[] =>
    chosen.includes(cloud) ? chosen.filter((one) => one !== cloud) : [...chosen, cloud];
  return (
    <details class="clouds">
      <summary>Choose clouds</summary>
      <div class="jumps">
        {["all", ...clouds].map((cloud) => (
          <button
            type="button"
            class="jump"
            key={cloud}
            aria-pressed={chosen.includes(cloud)}
            onClick={() =>
              onInput(
                cloud === "all"
                  ? chosen.includes("all")
                    ? ""
                    : "all"
                  : toggled(cloud)
                      .filter((one) => one !== "all")
                      .join(","),
              )
            }
          >
            {cloud}
          </button>
        ))}
      </div>
    </details>
  );
}
