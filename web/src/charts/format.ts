/** Numbers as texts: three digits that count, units that fit. */
import type { Strategy } from "../document";

const GIB = 2 ** 30;
const DAY = 86400;

/** Three digits, without an exponent and without zeros behind the point. */
export function digits(value: number, count = 3): string {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const rounded = roundedTo(value, count);
  const behind = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded
    .toFixed(Math.min(behind, 12))
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");
}

/** Ties go to the even digit, as on the command line: 79.25 GiB is 79.2 in both. */
function roundedTo(value: number, count: number): number {
  const [mantissa = "", exponent = "0"] = value.toExponential(count + 30).split("e");
  const point = mantissa.indexOf(".");
  const isTie = /^50*$/.test(mantissa.slice(point + count));
  const kept = mantissa.slice(0, point + count).replace(/\.$/, "");
  return isTie && Number(kept.at(-1)) % 2 === 0
    ? Number(`${kept}e${exponent}`)
    : Number(value.toPrecision(count));
}

/** "1.3 s" as "1.30 s": in a column all figures have as many digits. */
export function padded(text: string, count = 3): string {
  return text.replace(/\d[\d.]*/, (number) => {
    const missing = count - number.replace(".", "").replace(/^0+/, "").length;
    if (missing <= 0 || Number(number) === 0) return number;
    return `${number}${number.includes(".") ? "" : "."}${"0".repeat(missing)}`;
  });
}

interface Unit {
  readonly size: number;
  readonly name: string;
}

const DURATIONS: readonly Unit[] = [
  { size: 1e-6, name: "µs" },
  { size: 1e-3, name: "ms" },
  { size: 1, name: "s" },
  { size: 60, name: "min" },
  { size: 3600, name: "h" },
  { size: DAY, name: "days" },
  { size: 365.25 * DAY, name: "years" },
];

/** The unit in which a duration reads best: from two minutes on in minutes, and so on. */
export function durationUnit(seconds: number): Unit {
  let best = DURATIONS[0] as Unit;
  for (const unit of DURATIONS) {
    if (Math.abs(seconds) >= unit.size * (unit.size >= 60 ? 2 : 1) * 0.9995) best = unit;
  }
  return best;
}

/** Below this a difference of sums is what rounding left of it. */
const LEAST_SECONDS = 1e-9;

export function duration(seconds: number): string {
  if (Math.abs(seconds) < LEAST_SECONDS) return "0 s";
  const unit = durationUnit(seconds);
  return `${digits(seconds / unit.size)} ${unit.name}`;
}

function scaled(value: number, count: number): string {
  const size = Math.abs(value) * (1 + 0.5 * 10 ** -count);
  for (const [power, letter] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const) {
    if (size >= power) return `${digits(value / power, count)}${letter}`;
  }
  return digits(value, count);
}

export function usd(value: number, count = 3): string {
  return `$${scaled(value, count)}`;
}

export function amount(value: number): string {
  return scaled(value, 3);
}

export function gib(bytes: number): string {
  return `${digits(bytes / GIB)} GiB`;
}

export function inGib(bytes: number): number {
  return bytes / GIB;
}

export function percent(share: number): string {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return "<0.1 %";
  return `${value >= 10 ? Math.round(value) : digits(value, 2)} %`;
}

export function bandwidth(bytesPerSecond: number): string {
  return `${digits(bytesPerSecond / 1e9)} GB/s`;
}

/** "H100-SXM5-80GB" is too long for a small picture: the name without its form factor. */
export function shortGpu(name: string): string {
  return name.replace(/-(SXM|PCIE|PCIe|NVL|OAM)[^-]*/i, "");
}

/** "64 x H100-80GB + 16 x A100-80GB" */
export function gpuText(gpus: Readonly<Record<string, number>>, short = false): string {
  const parts = Object.entries(gpus).map(
    ([name, count]) => `${count} x ${short ? shortGpu(name) : name}`,
  );
  return parts.join(" + ");
}

/** "tp 4 · pp 8 · dp 2": degrees above one, and what else tells plans apart. */
export function strategyText(strategy: Strategy): string {
  const degrees = (["tp", "pp", "dp", "cp", "ep"] as const)
    .filter((name) => strategy[name] > 1)
    .map((name) => `${name} ${strategy[name]}`);
  return (degrees.length > 0 ? degrees : ["one GPU"]).join(" · ");
}

/** What stands behind the degrees: micro-batch, virtual stages, ZeRO, recompute. */
export function detailText(strategy: Strategy): string {
  const parts = [`micro-batch ${strategy.micro_batch}`];
  if (strategy.virtual_stages > 1) parts.push(`${strategy.virtual_stages} virtual`);
  if (strategy.zero_stage > 0) parts.push(`ZeRO ${strategy.zero_stage}`);
  if (strategy.recompute.granularity !== "none") {
    parts.push(`recompute ${recomputeText(strategy)}`);
  }
  if (strategy.offload_optimizer) parts.push("host optimizer");
  if (strategy.split !== "even") parts.push(`${strategy.split} layers`);
  return parts.join(" · ");
}

export function recomputeText(strategy: Strategy): string {
  const { granularity, method, layers } = strategy.recompute;
  return method === "block" ? `${granularity} (${layers} layers)` : granularity;
}
