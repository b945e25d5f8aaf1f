/** A timeline without its middle, which repeats itself; and what a part of it sums up to. */

import type { TimelineDocument } from "../document";
import { AFTER, BACKWARD, CLASSES, classOf, FORWARD, firstAt, type Lanes, LEFT_OUT } from "./lanes";
import type { View } from "./view";

/** Less than this share of the iteration is not worth a cut. */
const LEAST = 0.5;

/**
 * What is left out: from behind the first steady period to the last begin of one.
 *
 * The first stage tells: it is steady from its first backward pass to its last forward pass, and a
 * period is one of each, or a round of all chunks. Both ends lie at the same place of a period, so
 * that what is cut goes on as if nothing were missing. Null where little would be left out.
 */
export function foldOf(timeline: TimelineDocument): View | null {
  const { events, stages, seconds } = timeline;
  const own = (kind: number): number[] =>
    events.start.filter((_, row) => events.stage[row] === 0 && events.kind[row] === kind);
  const last = own(FORWARD).reduce((latest, start) => Math.max(latest, start), 0);
  const steady = own(BACKWARD)
    .filter((start) => start <= last)
    .sort((a, b) => a - b);
  const chunks = stages[0]?.layers.length ?? 1;
  const period = chunks > 1 ? chunks * stages.length : 1;
  const from = steady[period];
  const to = steady[period * Math.floor((steady.length - 1) / period)];
  if (from === undefined || to === undefined || to - from < LEAST * seconds) return null;
  return { from, to };
}

/** Where a moment of the whole is once the middle is gone, and back. */
export function foldedMoment(fold: View | null, moment: number): number {
  if (!fold || moment <= fold.from) return moment;
  return Math.max(moment - fold.to, 0) + fold.from;
}

export function realMoment(fold: View | null, moment: number): number {
  return !fold || moment <= fold.from ? moment : moment + fold.to - fold.from;
}

export function folded(timeline: TimelineDocument, fold: View): TimelineDocument {
  const { events, memory } = timeline;
  const start = events.start.map((moment) => foldedMoment(fold, moment));
  const end = events.end.map((moment) => foldedMoment(fold, moment));
  const kept = (_: unknown, row: number): boolean => (end[row] as number) > (start[row] as number);
  return {
    ...timeline,
    seconds: foldedMoment(fold, timeline.seconds),
    events: {
      kind: events.kind.filter(kept),
      stage: events.stage.filter(kept),
      start: start.filter(kept),
      end: end.filter(kept),
      micro_batch: events.micro_batch.filter(kept),
      chunk: events.chunk.filter(kept),
      to_stage: events.to_stage.filter(kept),
    },
    memory: memory.map(({ moments, bytes }) => {
      // Of what is held in the middle, only the last stays: it holds on.
      const stays = (_: unknown, at: number): boolean =>
        (moments[at] as number) < fold.from || (moments[at + 1] ?? Infinity) > fold.to;
      return {
        moments: moments.filter(stays).map((moment) => foldedMoment(fold, moment)),
        bytes: bytes.filter(stays),
      };
    }),
  };
}

/** Shares of the time of all stages in a part of the iteration. */
export interface Sums {
  readonly forward: number;
  readonly backward: number;
  readonly after: number;
  readonly waiting: number;
  /** What the document does not tell. */
  readonly leftOut: number;
}

export function sumsOf(passes: Lanes, stages: number, { from, to }: View): Sums {
  const sums = new Float64Array(CLASSES + 1);
  for (let stage = 0; stage < stages; stage++) {
    const last = passes.offsets[stage + 1] as number;
    for (let index = firstAt(passes, stage, from); index < last; index++) {
      const start = passes.start[index] as number;
      if (start >= to) break;
      const kind = passes.kind[index] as number;
      const place = kind === LEFT_OUT ? CLASSES : classOf(kind);
      const seconds = Math.min(to, passes.end[index] as number) - Math.max(from, start);
      sums[place] = (sums[place] as number) + Math.max(0, seconds);
    }
  }
  const all = (to - from) * stages || 1;
  const share = (place: number): number => (sums[place] as number) / all;
  const [forward, backward, after] = [share(FORWARD), share(BACKWARD), share(AFTER)];
  const leftOut = share(CLASSES);
  const waiting = Math.max(0, 1 - forward - backward - after - leftOut);
  return { forward, backward, after, waiting, leftOut };
}
