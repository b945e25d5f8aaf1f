/** The whole of a timeline as a strip, with a window over what is shown; drag it to go elsewhere. */

import { clamp, element } from "./frame";
import { CLASSES, cover, type Lanes, mix, type Rgb } from "./lanes";
import { panned, type View, whole } from "./view";

/** Pixels across: the strip is stretched. */
const WIDTH = 600;
const MOST_ROWS = 16;

export interface Mapped {
  seconds(): number;
  view(): View;
  show(view: View): void;
}

export class Minimap {
  readonly root = element("div", "chart-map");
  private readonly canvas = element("canvas", "");
  private readonly shown = element("div", "chart-map-view");

  constructor(private readonly chart: Mapped) {
    // The keys of the picture below do the same.
    this.root.setAttribute("aria-hidden", "true");
    this.root.append(this.canvas, this.shown);
    const go = (event: PointerEvent): void => {
      if (!(event.buttons & 1)) return;
      const { left, width } = this.root.getBoundingClientRect();
      const { from, to } = chart.view();
      const at = clamp((event.clientX - left) / width, 0, 1) * chart.seconds();
      chart.show(panned(chart.view(), chart.seconds(), at - (from + to) / 2));
    };
    this.root.addEventListener("pointerdown", (event) => {
      this.root.setPointerCapture?.(event.pointerId);
      go(event);
    });
    this.root.addEventListener("pointermove", go);
  }

  /** Draws the strip; the window follows with `move`. */
  draw(passes: Lanes, stages: number, colours: readonly Rgb[], wait: Rgb): void {
    const rows = Math.min(stages, MOST_ROWS);
    this.canvas.width = WIDTH;
    this.canvas.height = rows;
    const context = this.canvas.getContext("2d");
    if (!context || rows === 0) return;
    const image = context.createImageData(WIDTH, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const shares = new Float32Array(CLASSES * WIDTH);
    for (let row = 0; row < rows; row++) {
      const stage = Math.floor((row * stages) / rows);
      cover(passes, stage, whole(this.chart.seconds()), WIDTH, shares);
      mix(shares, WIDTH, colours, wait, pixels.subarray(row * WIDTH, (row + 1) * WIDTH));
    }
    context.putImageData(image, 0, 0);
  }

  move(gutter: number): void {
    const { from, to } = this.chart.view();
    const seconds = this.chart.seconds() || 1;
    this.root.style.marginLeft = `${gutter}px`;
    this.shown.style.left = `${(100 * from) / seconds}%`;
    this.shown.style.width = `${(100 * (to - from)) / seconds}%`;
  }
}
