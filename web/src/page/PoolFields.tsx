/** The GPUs: a row for each type. */
import { useMemo } from "preact/hooks";
import { digits } from "../charts/format";
import type { Catalog, CatalogGpu } from "./api";
import { Combobox } from "./Combobox";
import { Message } from "./Field";
import { type Form, newPool, type Pool } from "./request";

interface Props {
  form: Form;
  catalog: Catalog | null;
  /** The field of the form that is wrong, and what the server says about it. */
  field: string | null;
  error: string | undefined;
  onChange: (change: Partial<Form>) => void;
}

export function PoolFields({ form, catalog, field, error, onChange }: Props) {
  const suggestions = useMemo(
    () =>
      [...(catalog?.gpus ?? [])].reverse().map((gpu) => ({
        value: gpu.aliases[0] ?? gpu.name,
        others: [gpu.name, ...gpu.aliases],
        about: [
          `${digits(gpu.memory_gib)} GiB`,
          ...(gpu.usd_per_gpu_hour === null ? [] : [`$${gpu.usd_per_gpu_hour.toFixed(2)}/h`]),
          gpu.release_year,
        ].join(", "),
      })),
    [catalog],
  );
  const { pools } = form;

  function edit(id: number, change: Partial<Pool>): void {
    onChange({ pools: pools.map((pool) => (pool.id === id ? { ...pool, ...change } : pool)) });
  }

  if (form.cluster) {
    return (
      <fieldset>
        <legend>GPUs</legend>
        <p class="chip">
          <span>a cluster file from the link</span>
          <button
            type="button"
            id="add-pool"
            aria-label="Remove the cluster file"
            onClick={() => onChange({ cluster: null, pools: [newPool("h100", "64")] })}
          >
            ✕
          </button>
        </p>
        <Message id="pools" error={field?.startsWith("pools") ? error : undefined} />
      </fieldset>
    );
  }
  const here = field?.startsWith("pools") ? field : null;
  return (
    <fieldset>
      <legend>GPUs</legend>
      <div class="pools">
        <span class="head" aria-hidden="true">
          Type
        </span>
        <span class="head" aria-hidden="true">
          Count
        </span>
        <span class="head" aria-hidden="true">
          $ / GPU hour
        </span>
        <span />
        {pools.map((pool, index) => {
          const isHere = here === `pools[${index}]` || here?.startsWith(`pools[${index}].`);
          const isPrice = here === `pools[${index}].usd_per_gpu_hour`;
          const id = `pool-${index}`;
          return (
            <div class="pool" key={pool.id}>
              <Combobox
                id={`${id}-type`}
                label={`GPU type of row ${index + 1}`}
                value={pool.type}
                suggestions={suggestions}
                placeholder="such as h100"
                describedBy="pools-message"
                isWrong={isHere === true && !isPrice}
                onInput={(type) => edit(pool.id, { type })}
              />
              <input
                id={`${id}-count`}
                type="text"
                inputMode="numeric"
                autocomplete="off"
                aria-label={`Number of GPUs in row ${index + 1}`}
                aria-describedby="pools-message"
                aria-invalid={isHere && !isPrice ? "true" : undefined}
                value={pool.count}
                onInput={(event) => edit(pool.id, { count: event.currentTarget.value })}
              />
              <input
                id={`${id}-price`}
                type="text"
                inputMode="decimal"
                autocomplete="off"
                aria-label={`Dollars per GPU and hour in row ${index + 1}`}
                aria-describedby="pools-message"
                aria-invalid={isPrice ? "true" : undefined}
                placeholder={listPrice(catalog, pool.type)}
                value={pool.price}
                onInput={(event) => edit(pool.id, { price: event.currentTarget.value })}
              />
              <button
                type="button"
                class="quiet"
                aria-label={`Remove row ${index + 1}: ${pool.type || "empty"}`}
                onClick={() => onChange({ pools: pools.filter((one) => one.id !== pool.id) })}
              >
                ✕
              </button>
            </div>
          );
        })}
      </div>
      <button
        type="button"
        id="add-pool"
        onClick={() => onChange({ pools: [...pools, newPool(nextType(pools), "8")] })}
      >
        + Add GPUs
      </button>
      <Message
        id="pools"
        hint={
          form.own
            ? "The count may stay empty where the script states it."
            : "Price: your own, or the catalog's in grey."
        }
        error={here === null ? undefined : error}
      />
    </fieldset>
  );
}

/** A type that is not in the form yet. */
function nextType(pools: readonly Pool[]): string {
  const common = ["h100", "a100", "h200", "b200", "l40s", "v100"];
  return common.find((type) => pools.every((pool) => pool.type !== type)) ?? "";
}

export function gpuOf(catalog: Catalog | null, type: string): CatalogGpu | undefined {
  // As the server reads them: "rtx4090" is "rtx-4090".
  const plain = (text: string): string => text.toLowerCase().replaceAll(/[-_\s]/g, "");
  const typed = plain(type);
  return catalog?.gpus.find((gpu) =>
    [gpu.name, ...gpu.aliases].some((one) => plain(one) === typed),
  );
}

function listPrice(catalog: Catalog | null, type: string): string {
  const price = gpuOf(catalog, type)?.usd_per_gpu_hour;
  return price == null ? "" : price.toFixed(2);
}
