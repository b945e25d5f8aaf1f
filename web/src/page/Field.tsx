/** A labelled field; what the server says about it takes the place of its hint. */
import type { ComponentChildren } from "preact";
import { Term } from "./Term";
import type { Word } from "./words";

interface FieldProps {
  id: string;
  label: string;
  hint?: string;
  error?: string | undefined;
  /** Explained behind a question mark. */
  word?: Word | undefined;
  children: ComponentChildren;
}

export function Field({ id, label, hint, error, word, children }: FieldProps) {
  return (
    <div class={error ? "field wrong" : "field"}>
      <div class="label">
        <label for={id}>{label}</label>
        {word && (
          <Term word={word} label={`What is: ${label}`}>
            ?
          </Term>
        )}
      </div>
      {children}
      <Message id={id} hint={hint} error={error} />
    </div>
  );
}

export function Message(props: {
  id: string;
  hint?: string | undefined;
  error?: string | undefined;
}) {
  return (
    <p
      class={props.error ? "message mistake" : "message"}
      id={`${props.id}-message`}
      data-hint={props.hint}
    >
      {props.error ? (
        <span class="told">
          <span aria-hidden="true">⚠ </span>
          {props.error}
        </span>
      ) : (
        props.hint
      )}
    </p>
  );
}

interface TextProps {
  id: string;
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: string;
  error?: string | undefined;
  word?: Word;
  placeholder?: string;
  rows?: number;
}

export function TextField(props: TextProps) {
  const { id, label, value, onInput, hint = "", error, word, placeholder } = props;
  return (
    <Field id={id} label={label} hint={hint} error={error} word={word}>
      <input
        id={id}
        type="text"
        autocomplete="off"
        spellcheck={false}
        value={value}
        placeholder={placeholder}
        aria-describedby={`${id}-message`}
        aria-invalid={error ? "true" : undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </Field>
  );
}

export function LinesField(props: TextProps) {
  const { id, label, value, onInput, hint = "", error, word, placeholder } = props;
  return (
    <Field id={id} label={label} hint={hint} error={error} word={word}>
      <textarea
        id={id}
        rows={props.rows ?? 2}
        spellcheck={false}
        value={value}
        placeholder={placeholder}
        aria-describedby={`${id}-message`}
        aria-invalid={error ? "true" : undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </Field>
  );
}

interface ChoiceProps extends Omit<TextProps, "placeholder"> {
  choices: readonly (readonly [value: string, text: string])[];
}

export function ChoiceField(props: ChoiceProps) {
  const { id, label, value, onInput, hint = "", error, word, choices } = props;
  // A link may hold a value that is not offered: it is shown, and the server says what is wrong.
  const isOffered = choices.some(([one]) => one === value);
  return (
    <Field id={id} label={label} hint={hint} error={error} word={word}>
      <select
        id={id}
        value={value}
        aria-describedby={`${id}-message`}
        aria-invalid={error ? "true" : undefined}
        onChange={(event) => onInput(event.currentTarget.value)}
      >
        {choices.map(([one, text]) => (
          <option key={one} value={one}>
            {text}
          </option>
        ))}
        {!isOffered && <option value={value}>{value}</option>}
      </select>
    </Field>
  );
}
