/** What one click repairs: fields that the server names, with the values that it gives them. */
import type { Repair } from "./api";
import { type Form, newPool, type Pool, poolsOf, REPEATED_FLAGS } from "./request";

/** The form after a repair. */
export function repaired(form: Form, { changes }: Repair): Form {
  let after = form;
  for (const [field, value] of Object.entries(changes)) {
    after = { ...after, ...changeOf(after, field, value) };
  }
  return after;
}

function changeOf(form: Form, field: string, value: string): Partial<Form> {
  const row = /^pools\[(\d+)\]$/.exec(field)?.[1];
  if (row !== undefined) {
    const [given] = priced(form, value);
    return { pools: form.pools.map((pool, index) => (index === Number(row) && given) || pool) };
  }
  if (field === "gpus" || field === "pools") return { pools: priced(form, value) };
  if (field === "model") return { model: value, config: null, configName: "" };
  if (REPEATED_FLAGS.includes(field)) return { repeated: { ...form.repeated, [field]: value } };
  return { single: { ...form.single, [field]: value } };
}

/** The rows of "TYPE:COUNT,…", at the prices that are stated for these types. */
function priced(form: Form, gpus: string): Pool[] {
  return poolsOf({ gpus }).map(({ type, count }) => {
    const before = form.pools.find((pool) => pool.type === type);
    return newPool(type, count, before?.price);
  });
}
