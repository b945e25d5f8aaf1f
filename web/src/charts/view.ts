/** What part of a timeline is shown: arithmetic of zoom and pan. */

export interface View {
  readonly from: number;
  readonly to: number;
}

/** The smallest part of the whole that can be shown. */
const DEEPEST = 1e-6;

export function whole(seconds: number): View {
  return { from: 0, to: seconds };
}

/** Keeps a view inside the whole, without changing its length where that is possible. */
export function within(view: View, seconds: number): View {
  const length = Math.min(Math.max(view.to - view.from, seconds * DEEPEST), seconds);
  const from = Math.min(Math.max(view.from, 0), seconds - length);
  return { from, to: from + length };
}

/** Makes what is shown `factor` times as long; the moment `at` stays where it is. */
export function zoomed(view: View, seconds: number, factor: number, at: number): View {
  const length = view.to - view.from;
  const longer = Math.min(Math.max(length * factor, seconds * DEEPEST), seconds);
  const share = length > 0 ? (at - view.from) / length : 0.5;
  const from = at - share * longer;
  return within({ from, to: from + longer }, seconds);
}

export function panned(view: View, seconds: number, by: number): View {
  return within({ from: view.from + by, to: view.to + by }, seconds);
}

/** A wheel's turn as a factor; browsers differ in the unit of the turn. */
export function wheelFactor(delta: number, mode: number): number {
  const pixels = delta * (mode === 1 ? 16 : mode === 2 ? 400 : 1);
  return Math.exp(Math.min(Math.max(pixels, -300), 300) * 0.002);
}
