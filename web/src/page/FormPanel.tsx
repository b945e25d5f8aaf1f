/** All that is asked. */
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { AskError, Catalog } from "./api";
import { ChoiceField, LinesField, Message, TextField } from "./Field";
import { fieldOf } from "./fields";
import { ModelFields } from "./ModelFields";
import { OwnFields } from "./OwnFields";
import { PoolFields } from "./PoolFields";
import { type FieldText, type Form, GROUPS, isMarketAlone, ownForm } from "./request";
import { WORDS, type Word } from "./words";

interface Props {
  form: Form;
  catalog: Catalog | null;
  error: AskError | null;
  /** Who types on is waited for; a choice is made at once. */
  onChange: (form: Form, isChoice?: boolean) => void;
  /** A launch script of one's own is brought, or (null) taken away. */
  onOwn: (form: Form | null) => void;
}

const [RUN, GOAL, ...FOLDED] = GROUPS;
const VOCABULARY: FieldText = { name: "vocab_size", label: "Vocabulary", hint: "Entries" };

export function FormPanel({ form, catalog, error, onChange, onOwn }: Props) {
  const field = fieldOf(error);
  const change = (part: Partial<Form>): void => onChange({ ...form, ...part });
  const mistake = (name: string): string | undefined =>
    field === name ? error?.message : undefined;
  const shown = (text: FieldText): VNode => (
    <FormField
      key={text.name}
      text={text}
      form={form}
      error={mistake(text.name)}
      onChange={onChange}
    />
  );
  const asked = RUN?.fields.filter(({ choices }) => !(form.own && choices)) ?? [];
  return (
    <form class="panel form" aria-label="What to plan" onSubmit={(event) => event.preventDefault()}>
      {form.own ? (
        <OwnFields
          own={form.own}
          field={field}
          error={error?.message}
          asks={error?.asks ?? []}
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
        <legend>{RUN?.title}</legend>
        {[...asked, ...(form.own ? [VOCABULARY] : [])].map(shown)}
      </fieldset>
      {!form.own && (
        <>
          <fieldset class="grid">
            <legend>{GOAL?.title}</legend>
            {GOAL?.fields.map(shown)}
          </fieldset>
          {FOLDED.map(({ title, fields }, index) => {
            const isLast = index === FOLDED.length - 1;
            const names = [...fields.map(({ name }) => name), ...(isLast ? ["sensitivity"] : [])];
            return (
              <Folded key={title} title={title} isWrong={field !== null && names.includes(field)}>
                <div class="grid">
                  {fields.map((text) =>
                    text.name === "market"
                      ? [
                          <Clouds
                            key="clouds"
                            clouds={catalog?.clouds ?? []}
                            value={form.single.market ?? ""}
                            onInput={(market) =>
                              onChange({ ...form, single: { ...form.single, market } }, true)
                            }
                          />,
                          shown(text),
                        ]
                      : shown(text),
                  )}
                </div>
                {isLast && (
                  <>
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
                  </>
                )}
              </Folded>
            );
          })}
        </>
      )}
    </form>
  );
}

/** Fields that few need; a mistake in one of them unfolds all. */
function Folded(props: { title: string; isWrong: boolean; children: preact.ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    if (props.isWrong) setOpen(true);
  }, [props.isWrong]);
  return (
    <details class="more" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.title}</summary>
      {props.children}
    </details>
  );
}

interface FormFieldProps extends Pick<Props, "form" | "onChange"> {
  text: FieldText;
  error: string | undefined;
}

function FormField({ text, form, error, onChange }: FormFieldProps) {
  const { name, label, hint = "", placeholder = "", choices, lines } = text;
  const kind = lines ? "repeated" : "single";
  const props = {
    id: name,
    label,
    hint,
    error,
    ...(name in WORDS ? { word: name as Word } : {}),
    value: form[kind][name] ?? text.default ?? "",
    onInput: (value: string) =>
      onChange({ ...form, [kind]: { ...form[kind], [name]: value } }, choices !== undefined),
  };
  if (choices) {
    // Of all that clouds offer nobody rents everything, whatever is asked.
    const value = name === "mode" && isMarketAlone(form) ? "up-to" : props.value;
    return <ChoiceField {...props} value={value || (choices[0]?.[0] ?? "")} choices={choices} />;
  }
  const typed = { ...props, value: form[kind][name] ?? "", placeholder };
  return lines ? <LinesField {...typed} /> : <TextField {...typed} />;
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
