/** Messages of the server in the words of the form, and what one click repairs. */
import { digits, usd } from "../charts/format";
import type { AskError } from "./api";
import { LABELS, MODES, SPOTS } from "./labels";
import type { Form, Pool } from "./request";

const PHRASES: readonly (readonly [RegExp, string])[] = [
  [/; --price \S+=USD sets (?:a current )?one/, ""],
  [/; `astrarium catalog \w+` lists all(, and a path to a config\.json works too)?/, ""],
  [/, or give the machines in a cluster file/, ""],
  [/ \(--(?:failures|interruptions) sets the rate\)/, ""],
  [/, or start it with a longer --search-seconds/, ""],
  [/^--strategy: /, ""],
  [/^\S+: (the number of GPUs is missing); write .*/, "$1"],
  // What a launch script leaves open has fields of its own.
  [/; --set \w+=N says it/, ""],
  [/(?:Add|write) --gpus [A-Z]+:\w+ such as \S+/, "Choose their type."],
  [/write --gpus \S+/, "fill in their count"],
  [/(?:add|with|say them:|say what holds with) --set (\w+)=\w+/, "fill in “$$$1”"],
];

const VALUES: Readonly<Record<string, readonly (readonly [string, string])[]>> = {
  mode: MODES,
  spot: SPOTS,
};

/** Flags as the form calls them. */
const NAMES: Readonly<Record<string, string>> = {
  ...LABELS,
  gpus: "GPUs",
  model: "Model",
  price: "Price",
  sensitivity: "Say which price …",
};

/** "--budget 'lots': not a number" as "“Budget” 'lots': not a number". */
export function spoken(message: string): string {
  const text = PHRASES.reduce((before, [pattern, said]) => before.replace(pattern, said), message);
  return text.replace(/--([a-z][a-z0-9-]*)(?:[ =]([a-z][\w-]*))?/g, (all, flag, value) => {
    const name = flag.replaceAll("-", "_");
    const label = NAMES[name]?.replace(/,.*/, "");
    if (!label) return all;
    const choice = VALUES[name]?.find(([one]) => one === value)?.[1];
    if (choice) return `“${label}: ${choice}”`;
    return value === undefined ? `“${label}”` : `“${label}” ${value}`;
  });
}

export interface Repair {
  text: string;
  change: (form: Form) => Partial<Form>;
}

interface Rule {
  pattern: RegExp;
  repairs: (found: RegExpExecArray, field: string) => (Repair | null)[];
}

/** What messages offer: each of their ways out becomes a button. */
const RULES: readonly Rule[] = [
  {
    pattern: /\(did you mean '([^']+)'\?\)/,
    repairs: ([, name = ""], field) => [named(name, field)],
  },
  {
    pattern: /unknown field \$(\w+) \(did you mean '(\w+)'\?\)/,
    repairs: ([, typed = "", meant = ""]) => [
      {
        text: `Use $${meant}`,
        change: ({ repeated }) => ({
          repeated: {
            ...repeated,
            rule: repeated.rule?.replaceAll(`$${typed}`, () => `$${meant}`) ?? "",
          },
        }),
      },
    ],
  },
  {
    pattern: /the number of GPUs is missing; write \S+:(\d+)/,
    repairs: ([, count = ""], field) => [inRow(field, { count }, `Use ${count} GPUs`)],
  },
  {
    pattern: /; use (\d+)(?: or (\d+))?/,
    repairs: ([, one = "", other], field) =>
      [one, other].map((count) => (count ? inRow(field, { count }, `Use ${count} GPUs`) : null)),
  },
  {
    pattern: /has (\d+) GPUs, but --gpus/,
    repairs: ([, count = ""]) => [inRow("pools[0]", { count }, `Use ${count} GPUs`)],
  },
  {
    pattern: /the smallest number of them that fits is (\d+)/,
    repairs: ([, count = ""]) => [inRow("pools[0]", { count }, `Use ${count} GPUs`)],
  },
  {
    pattern: /--budget ([\d.]+) would do/,
    repairs: ([, value = ""]) => [
      single({ budget: value }, `Set the budget to ${usd(Number(value))}`),
    ],
  },
  {
    pattern: /--deadline ([\d.]+) would do/,
    repairs: ([, value = ""]) => [
      single({ deadline: value }, `Set the deadline to ${digits(Number(value), 4)} days`),
    ],
  },
  {
    pattern: /--mode up-to/,
    repairs: () => [single({ mode: "up-to" }, "Let plans use fewer GPUs")],
  },
  {
    pattern: /--tokens and --epochs are both given/,
    repairs: () => [
      single({ epochs: "", dataset_tokens: "" }, "Keep the tokens"),
      single({ tokens: "" }, "Keep the epochs"),
    ],
  },
  {
    pattern: /known are ([\w, ]+)$/,
    repairs: ([, names = ""], field) => names.split(", ").map((name) => named(name, field)),
  },
  {
    pattern: /has no fp\d+ arithmetic/,
    repairs: () => [single({ precision: "bf16" }, "Use bf16")],
  },
];

export function repairsOf(error: AskError | null): Repair[] {
  if (!error) return [];
  const field = error.field ?? "";
  return RULES.flatMap(({ pattern, repairs }) => {
    const found = pattern.exec(error.message);
    return found ? repairs(found, field).filter((one) => one !== null) : [];
  });
}

function single(change: Form["single"], text: string): Repair {
  return { text, change: (form) => ({ single: { ...form.single, ...change } }) };
}

/** A name in the place of the one that is not known. */
function named(name: string, field: string): Repair | null {
  const text = `Use ${name}`;
  if (field === "model") return { text, change: () => ({ model: name }) };
  if (field.startsWith("pools[")) return inRow(field, { type: name }, text);
  return field === "market" || field === "region" ? single({ [field]: name }, text) : null;
}

function inRow(field: string, change: Partial<Pool>, text: string): Repair | null {
  const row = Number(/^pools\[(\d+)\]/.exec(field)?.[1] ?? Number.NaN);
  if (Number.isNaN(row)) return null;
  return {
    text,
    change: ({ pools }) => ({
      pools: pools.map((pool, index) => (index === row ? { ...pool, ...change } : pool)),
    }),
  };
}
