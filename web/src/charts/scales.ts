/** Scales of axes and their ticks. */

export interface Scale {
  readonly low: number;
  readonly high: number;
  readonly isLog: boolean;
  /** The pixel of a value. */
  at(value: number): number;
  /** The value at a pixel. */
  invert(pixel: number): number;
}

/** From this ratio on the largest value would press all others into a corner. */
const LOG_FROM = 8;

export function linearScale(low: number, high: number, from: number, to: number): Scale {
  const span = high - low || 1;
  return {
    low,
    high,
    isLog: false,
    at: (value) => from + ((value - low) / span) * (to - from),
    invert: (pixel) => low + ((pixel - from) / (to - from)) * span,
  };
}

/** Needs `low` above zero. */
export function logScale(low: number, high: number, from: number, to: number): Scale {
  const first = Math.log(low);
  const span = Math.log(high) - first || 1;
  return {
    low,
    high,
    isLog: true,
    at: (value) => from + ((Math.log(value) - first) / span) * (to - from),
    invert: (pixel) => Math.exp(first + ((pixel - from) / (to - from)) * span),
  };
}

/** A scale over all values with a margin: logarithmic where they span too much for a linear one. */
export function fittingScale(values: Iterable<number>, from: number, to: number): Scale {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return linearScale(0, 1, from, to);
  if (low > 0 && high / low >= LOG_FROM) {
    const margin = (high / low) ** 0.04;
    return logScale(low / margin, high * margin, from, to);
  }
  const margin = high > low ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
  const bottom = low - margin;
  return linearScale(low >= 0 ? Math.max(bottom, 0) : bottom, high + margin, from, to);
}

/** The 1, 2 or 5 times a power of ten that cuts a span into at most about `count` parts. */
export function niceStep(span: number, count: number): number {
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5]) if (factor * power >= rough * 0.9999) return factor * power;
  return 10 * power;
}

export function linearTicks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const ticks: number[] = [];
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  // Whole numbers of steps, so that no rounding adds up.
  for (let index = first; index <= last; index++) ticks.push(clean(index * step));
  return ticks;
}

/** Whole powers of ten, with 2 and 5 (or all nine) times these where there are few. */
export function logTicks(low: number, high: number, count: number): number[] {
  const every = (factors: readonly number[], stride: number): number[] => {
    const ticks: number[] = [];
    const last = Math.floor(Math.log10(high) + 1e-9);
    for (let power = Math.floor(Math.log10(low)); power <= last; power += stride) {
      for (const factor of factors) {
        const tick = clean(factor * 10 ** power);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
      }
    }
    return ticks;
  };
  for (const factors of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const ticks = every(factors, 1);
    if (ticks.length <= count) return ticks.length >= 2 ? ticks : linearTicks(low, high, count);
  }
  return every([1], Math.ceil(Math.log10(high / low) / count));
}

export function ticksOf(scale: Scale, count: number): number[] {
  return scale.isLog
    ? logTicks(scale.low, scale.high, count)
    : linearTicks(scale.low, scale.high, count);
}

/** Ticks as texts that are all different, however near each other they are. */
export function tickTexts(
  ticks: readonly number[],
  text: (tick: number, digits: number) => string,
) {
  for (let digits = 3; digits < 15; digits++) {
    const texts = ticks.map((tick) => text(tick, digits));
    if (new Set(texts).size === texts.length) return texts;
  }
  return ticks.map(String);
}

/** 0.30000000000000004 reads badly. */
function clean(value: number): number {
  return Number(value.toPrecision(12));
}
