/** The colours of the style sheet, for canvases, and news of their change. */

export const COLOURS = [
  "surface",
  "ink",
  "faint",
  "grid",
  "rule",
  "wait",
  "raised",
  "blue",
  "orange",
  "green",
  "pink",
  "sky",
  "red",
  "yellow",
  "grey",
  "accent",
] as const;

export type Colour = (typeof COLOURS)[number];
export type Theme = Readonly<Record<Colour, string>>;

/** Colours of pools, in this order; what is behind the last is grey. */
export const POOL_COLOURS: readonly Colour[] = [
  "blue",
  "orange",
  "green",
  "pink",
  "sky",
  "red",
  "yellow",
];

export function poolColour(index: number): Colour {
  return POOL_COLOURS[index] ?? "grey";
}

export function cssColour(colour: Colour): string {
  return `var(--chart-${colour})`;
}

/** The colours in force at an element: a custom property may be a function, so one is applied. */
export function readTheme(place: HTMLElement): Theme {
  const probe = document.createElement("span");
  probe.hidden = true;
  // Forced colours would all be one: what is drawn could not be told apart.
  probe.style.setProperty("forced-color-adjust", "none");
  place.append(probe);
  const theme = {} as Record<Colour, string>;
  for (const colour of COLOURS) {
    probe.style.color = cssColour(colour);
    theme[colour] = getComputedStyle(probe).color;
  }
  probe.remove();
  return theme;
}

/** Red, green and blue of "rgb(1, 2, 3)", as computed colours are written. */
export function channels(colour: string): readonly [number, number, number] {
  const [red = 0, green = 0, blue = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return [red, green, blue];
}

/** A pixel of an image: alpha, blue, green, red, as on the machines that browsers run on. */
export function packed([red, green, blue]: readonly [number, number, number], alpha = 255): number {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Calls back when the system's or the page's choice changes; returns what ends that. */
export function onThemeChange(changed: () => void): () => void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", changed);
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme", "class", "style"],
  });
  return () => {
    query.removeEventListener("change", changed);
    observer.disconnect();
  };
}
