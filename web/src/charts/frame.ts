/**
 * The box around a picture: its fixed size, tooltip, text for screen readers, redraws.
 *
 * The height is known before anything is drawn, so that the page around never jumps. The box is
 * an image with a text that says what it shows; what arrow keys reach is said in a live region.
 */

import { onThemeChange } from "./theme";

export interface Chart<Data, Key> {
  update(data: Data): void;
  select(key: Key | null): void;
  destroy(): void;
}

let frames = 0;
/** All that are on the page. */
const shown = new Set<Frame>();
/** Pixels above a picture that a tooltip may cover: its title tells less than what is below. */
const TITLE = 60;

export class Frame {
  readonly root = element("div", "chart");
  readonly box = element("div", "chart-box");
  readonly name: string;
  width = 0;
  height: number;
  private readonly tip = element("div", "chart-tip");
  private readonly live = element("div", "chart-hidden");
  private readonly hint = element("div", "chart-hidden");
  private readonly observer: ResizeObserver;
  private readonly endTheme: () => void;
  private asked = 0;

  /** `draw` is told whether size or colours may have changed since it was last called. */
  constructor(
    container: HTMLElement,
    height: number,
    private readonly draw: (isFresh: boolean) => void,
  ) {
    this.name = `chart-${++frames}`;
    this.height = height;
    this.box.style.height = `${height}px`;
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "img");
    this.live.setAttribute("aria-live", "polite");
    this.hint.id = `${this.name}-hint`;
    this.tip.setAttribute("aria-hidden", "true");
    this.root.append(this.box, this.live, this.tip);
    container.append(this.root);
    this.width = this.box.clientWidth;
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.box);
    // At once: paper does not wait for the next frame.
    this.endTheme = onThemeChange(() => this.redrawNow());
    shown.add(this);
    this.redraw(true);
  }

  private isFresh = true;

  /** Draws before the next frame, however often it is asked for. */
  redraw(isFresh = false): void {
    this.isFresh ||= isFresh;
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => this.drawNow());
  }

  private drawNow(): void {
    this.asked = 0;
    if (this.width <= 0) return;
    const isFresh = this.isFresh;
    this.isFresh = false;
    this.draw(isFresh);
  }

  resized(): void {
    const width = this.box.clientWidth;
    if (width === this.width) return;
    this.width = width;
    this.hideTip();
    // At once: a frame with the old picture stretched to the new size would flicker.
    this.redrawNow();
  }

  private redrawNow(): void {
    this.isFresh = true;
    if (this.asked) cancelAnimationFrame(this.asked);
    this.drawNow();
  }

  setHeight(height: number): void {
    if (height === this.height) return;
    this.height = height;
    this.box.style.height = `${height}px`;
    this.redraw(true);
  }

  /** What the picture shows, in a sentence or two. */
  summary(text: string): void {
    if (this.box.getAttribute("aria-label") !== text) this.box.setAttribute("aria-label", text);
  }

  /** Which keys do what. */
  keys(text: string): void {
    this.hint.textContent = text;
    this.root.append(this.hint);
    this.box.setAttribute("aria-describedby", this.hint.id);
  }

  say(text: string): void {
    this.live.textContent = text;
  }

  /** Shows lines next to a place in the box, the first of them as a title. */
  showTip(x: number, y: number, lines: readonly string[]): void {
    this.tip.replaceChildren(...lines.map((line) => element("div", "", line)));
    const top = this.box.offsetTop;
    const wide = this.tip.offsetWidth;
    const high = this.tip.offsetHeight;
    const left = x + 14 + wide <= this.width ? x + 14 : x - 14 - wide;
    const above = y - high - 10;
    const down = above >= -top - TITLE ? above : y + 16;
    this.tip.style.transform = `translate(${clamp(left, 0, this.width - wide)}px, ${top + down}px)`;
    this.tip.style.visibility = "visible";
  }

  hideTip(): void {
    this.tip.style.visibility = "hidden";
  }

  /** Where in the box a pointer is. */
  place(event: MouseEvent): { x: number; y: number } {
    const bounds = this.box.getBoundingClientRect();
    return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
  }

  destroy(): void {
    shown.delete(this);
    if (this.asked) cancelAnimationFrame(this.asked);
    this.observer.disconnect();
    this.endTheme();
    this.root.remove();
  }
}

const PAPER = "paper";
/** Device pixels to a CSS pixel on paper, which is finer than a screen. */
const PAPER_RATIO = 3;

/**
 * Paper is white and narrow, whatever the screen is: everything is laid out for it before the
 * browser takes its picture, and as it was behind that. The style sheets know the class `paper`.
 */
export function printOnPaper(page: Document): void {
  const { classList, dataset } = page.documentElement;
  let theme: string | undefined;
  addEventListener("beforeprint", () => {
    theme = dataset.theme;
    classList.add(PAPER);
    dataset.theme = "light";
    for (const frame of shown) frame.resized();
    // Behind what is drawn for the change of colours.
    queueMicrotask(() => {
      for (const canvas of page.querySelectorAll<HTMLCanvasElement>(".chart-box > canvas")) {
        flatten(canvas);
      }
    });
  });
  addEventListener("afterprint", () => {
    classList.remove(PAPER);
    if (theme === undefined) delete dataset.theme;
    else dataset.theme = theme;
  });
}

/** Makes what is drawn an image: browsers lose some shapes of a canvas on paper. */
function flatten(canvas: HTMLCanvasElement): void {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  if (!context || width === 0 || height === 0) return;
  const pixels = context.getImageData(0, 0, width, height);
  canvas.width = width;
  context.putImageData(pixels, 0, 0);
}

const MOST_RATIO = 2;
/** So many take long to fill, where there is no graphics card. */
const MANY_PIXELS = 1.2e6;

/** A canvas that fills a frame; `fit` sets its size in device pixels and gives the context. */
export class Layer {
  readonly canvas = element("canvas", "");
  private readonly context: CanvasRenderingContext2D | null;

  constructor(private readonly frame: Frame) {
    this.canvas.setAttribute("aria-hidden", "true");
    frame.box.append(this.canvas);
    this.context = this.canvas.getContext("2d");
  }

  /** Whether a large picture is drawn without the finer pixels of a screen, while it moves. */
  isRough = false;

  /** Device pixels to a CSS pixel: sharper ones are not told apart, and take longer to fill. */
  get ratio(): number {
    if (document.documentElement.classList.contains(PAPER)) return PAPER_RATIO;
    const { width, height } = this.frame;
    const ratio = Math.min(globalThis.devicePixelRatio || 1, MOST_RATIO);
    return this.isRough && width * height * ratio * ratio > MANY_PIXELS ? 1 : ratio;
  }

  /** Empty, with CSS pixels as units; null where there is no canvas to draw on. */
  fit(): CanvasRenderingContext2D | null {
    const { context, canvas, frame, ratio } = this;
    if (!context) return null;
    const width = Math.round(frame.width * ratio);
    const height = Math.round(frame.height * ratio);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = fontOf(frame.root);
    return context;
  }
}

export function fontOf(place: HTMLElement): string {
  const style = getComputedStyle(place);
  return `${style.fontSize || "12px"} ${style.fontFamily || "sans-serif"}`;
}

export function clamp(value: number, low: number, high: number): number {
  return Math.max(low, Math.min(value, high));
}

export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  className: string,
  text?: string,
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}
