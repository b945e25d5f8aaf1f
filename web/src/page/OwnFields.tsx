/** A launch script or configuration of one's own, and what it leaves open. */
import { useRef } from "preact/hooks";
import { LinesField, TextField } from "./Field";
import type { OwnText } from "./request";

export const MOST_LETTERS = 200_000;

interface Props {
  own: OwnText;
  /** The field that is wrong, and what the server says about it. */
  field: string | null;
  error: string | undefined;
  /** Variables that it asks for. */
  asks: readonly string[];
  onChange: (own: OwnText) => void;
  onRemove: () => void;
}

export function OwnFields({ own, field, error, asks, onChange, onRemove }: Props) {
  const mistake = (name: string): string | undefined => (field === name ? error : undefined);
  // What was asked for once stays: its answer may be changed.
  const names = useRef(new Set<string>());
  for (const name of [...Object.keys(own.set), ...asks]) names.current.add(name);
  return (
    <fieldset>
      <legend>Your launch script or configuration</legend>
      <p class="chip">
        <span>{own.name}</span>
        <button type="button" aria-label={`Remove ${own.name}`} onClick={onRemove}>
          ✕
        </button>
      </p>
      <input
        id="own-file"
        type="file"
        aria-label="Choose its file"
        onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          void file?.text().then((text) => onChange({ ...own, name: file.name, text }));
        }}
      />
      <LinesField
        id="text"
        label="Its text"
        rows={8}
        hint="Read, never executed; of Megatron-LM, DeepSpeed, torchtitan, NeMo and others."
        placeholder="torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 …"
        value={own.text}
        error={mistake("text")}
        onInput={(text) => onChange({ ...own, text })}
      />
      {[...names.current].map((name) => (
        <TextField
          key={name}
          id={`set-${name}`}
          label={`$${name}`}
          hint="The script leaves it open."
          value={own.set[name] ?? ""}
          error={mistake(`set-${name}`)}
          onInput={(value) => onChange({ ...own, set: { ...own.set, [name]: value } })}
        />
      ))}
      <TextField
        id="arguments"
        label="Called with"
        hint="Arguments, where the script takes some"
        value={own.arguments}
        error={mistake("arguments")}
        onInput={(text) => onChange({ ...own, arguments: text })}
      />
    </fieldset>
  );
}
