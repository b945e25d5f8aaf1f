/** Wheel, drag, pinch and keys of a timeline, as changes of its view. */

import type { Frame } from "./frame";
import { panned, type View, wheelFactor, whole, within, zoomed } from "./view";

export interface Steered {
  readonly frame: Frame;
  seconds(): number;
  view(): View;
  show(view: View): void;
  /** The moment at a place in the box. */
  moment(x: number): number;
  secondsPerPixel(): number;
  hover(x: number, y: number): void;
  leave(): void;
  choose(y: number): void;
  step(by: number): void;
  /** Marks a part, to be summed up. */
  mark(view: View | null): void;
}

/** A drag of fewer pixels is a click. */
const CLICK = 4;
const STEP = 0.15;

export function zoomBy(chart: Steered, factor: number): void {
  const { from, to } = chart.view();
  chart.show(zoomed(chart.view(), chart.seconds(), factor, (from + to) / 2));
}

function wheel(chart: Steered, event: WheelEvent): void {
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    const by = sideways * chart.secondsPerPixel();
    chart.show(panned(chart.view(), chart.seconds(), by));
    return;
  }
  // Otherwise the page could not be scrolled past the picture.
  const isMeant = event.ctrlKey || event.metaKey || document.activeElement === chart.frame.box;
  if (!isMeant) return;
  event.preventDefault();
  const at = chart.moment(chart.frame.place(event).x);
  const factor = wheelFactor(event.deltaY, event.deltaMode);
  chart.show(zoomed(chart.view(), chart.seconds(), factor, at));
}

function key(chart: Steered, event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const view = chart.view();
  const length = view.to - view.from;
  const seconds = chart.seconds();
  const actions: Readonly<Record<string, () => void>> = {
    ArrowLeft: () => chart.show(panned(view, seconds, -STEP * length)),
    ArrowRight: () => chart.show(panned(view, seconds, STEP * length)),
    ArrowUp: () => chart.step(-1),
    ArrowDown: () => chart.step(1),
    PageUp: () => chart.show(panned(view, seconds, -length)),
    PageDown: () => chart.show(panned(view, seconds, length)),
    Home: () => chart.show(panned(view, seconds, -seconds)),
    End: () => chart.show(panned(view, seconds, seconds)),
    a: () => chart.show(panned(view, seconds, -STEP * length)),
    d: () => chart.show(panned(view, seconds, STEP * length)),
    w: () => zoomBy(chart, 0.7),
    s: () => zoomBy(chart, 1 / 0.7),
    "+": () => zoomBy(chart, 0.5),
    "=": () => zoomBy(chart, 0.5),
    "-": () => zoomBy(chart, 2),
    "0": () => chart.show(whole(seconds)),
    Escape: () => {
      chart.leave();
      chart.mark(null);
    },
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  action?.();
  return action !== undefined;
}

/** Pans with one pointer, zooms with two. */
function pointers(chart: Steered): Readonly<Record<string, (event: PointerEvent) => void>> {
  const down = new Map<number, { x: number; y: number }>();
  let moved = 0;
  // Where a part begins that is marked.
  let begin: number | null = null;
  const drag = (event: PointerEvent, old: { x: number; y: number }) => {
    const place = chart.frame.place(event);
    const other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const middle = chart.moment((place.x + other.x) / 2);
      const before = Math.max(20, Math.abs(old.x - other.x));
      const factor = before / Math.max(20, Math.abs(place.x - other.x));
      chart.show(zoomed(chart.view(), chart.seconds(), factor, middle));
    } else if (moved >= CLICK) {
      const by = (old.x - place.x) * chart.secondsPerPixel();
      chart.show(panned(chart.view(), chart.seconds(), by));
    }
    down.set(event.pointerId, place);
  };
  const end = (event: PointerEvent) => {
    down.delete(event.pointerId);
    chart.frame.box.style.cursor = "";
  };
  return {
    pointerdown: (event) => {
      if (event.button !== 0) return;
      if (down.size === 0) moved = 0;
      down.set(event.pointerId, chart.frame.place(event));
      chart.frame.box.setPointerCapture?.(event.pointerId);
      begin = event.shiftKey ? chart.moment(chart.frame.place(event).x) : null;
    },
    pointermove: (event) => {
      const place = chart.frame.place(event);
      const old = down.get(event.pointerId);
      if (!old) {
        chart.hover(place.x, place.y);
        return;
      }
      if (begin !== null) {
        chart.leave();
        const end = chart.moment(place.x);
        chart.mark(
          within({ from: Math.min(begin, end), to: Math.max(begin, end) }, chart.seconds()),
        );
        return;
      }
      moved += Math.abs(place.x - old.x);
      if (moved >= CLICK) {
        chart.leave();
        chart.frame.box.style.cursor = "grabbing";
      }
      drag(event, old);
    },
    pointerup: (event) => {
      const place = chart.frame.place(event);
      const wasClick =
        begin === null && down.has(event.pointerId) && down.size === 1 && moved < CLICK;
      end(event);
      if (!wasClick) return;
      chart.choose(place.y);
      chart.hover(place.x, place.y);
    },
    pointercancel: end,
    pointerleave: () => chart.leave(),
  };
}

export function steer(chart: Steered): void {
  const { box } = chart.frame;
  box.style.touchAction = "pan-y";
  box.addEventListener("wheel", (event) => wheel(chart, event), { passive: false });
  box.addEventListener("keydown", (event) => {
    if (key(chart, event)) event.preventDefault();
  });
  for (const [name, listener] of Object.entries(pointers(chart))) {
    box.addEventListener(name, listener as EventListener);
  }
}
