/** SVG elements, hatching, and legends. */

import { element } from "./frame";
import { type Colour, cssColour } from "./theme";

const NAMESPACE = "http://www.w3.org/2000/svg";

export type Attributes = Readonly<Record<string, string | number>>;

export function svg<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  children: readonly (Node | string)[] = [],
): SVGElementTagNameMap[Tag] {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "fill" || name === "stroke") made.style.setProperty(name, String(value));
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** How an area is filled: a colour, and lines over it where the colour alone may not tell. */
export type Hatch = "none" | "rising" | "falling" | "dots" | "cross";

export interface Fill {
  readonly colour: Colour;
  readonly hatch?: Hatch;
}

const HATCHES: Readonly<Record<Exclude<Hatch, "none">, string>> = {
  rising: "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
  falling: "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2",
  dots: "M1.5,1.5 h1.5 M4.5,4.5 h1.5",
  cross: "M0,6 l6,-6 M0,0 l6,6",
};

/** The patterns of hatching; their names begin with `prefix`, as names are global to a page. */
export function hatchDefinitions(prefix: string): SVGDefsElement {
  const patterns = Object.entries(HATCHES).map(([hatch, path]) =>
    svg(
      "pattern",
      { id: `${prefix}-${hatch}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      [
        svg("path", {
          d: path,
          stroke: "var(--chart-surface)",
          "stroke-width": 1.3,
          "stroke-opacity": 0.75,
        }),
      ],
    ),
  );
  return svg("defs", {}, patterns);
}

/** A filled rectangle: its colour, and its hatching over that. */
export function filled(
  prefix: string,
  fill: Fill,
  x: number,
  y: number,
  width: number,
  height: number,
): SVGGElement {
  const place = { x, y, width: Math.max(0, width), height };
  const parts = [svg("rect", { ...place, fill: cssColour(fill.colour) })];
  if (fill.hatch && fill.hatch !== "none") {
    parts.push(svg("rect", { ...place, fill: `url(#${prefix}-${fill.hatch})` }));
  }
  return svg("g", {}, parts);
}

export type Shape = "circle" | "square" | "triangle" | "diamond" | "down" | "cross" | "bar";

export const SHAPES: readonly Shape[] = [
  "circle",
  "square",
  "triangle",
  "diamond",
  "down",
  "cross",
  "bar",
];

/** The outline of a marker around a place, as a closed polygon; a circle has none. */
export function corners(shape: Shape, x: number, y: number, size: number): [number, number][] {
  const big = size * 1.25;
  const thin = size * 0.45;
  switch (shape) {
    case "circle":
      return [];
    case "square":
      return [
        [x - size, y - size],
        [x + size, y - size],
        [x + size, y + size],
        [x - size, y + size],
      ];
    case "triangle":
      return [
        [x, y - big],
        [x + big, y + size],
        [x - big, y + size],
      ];
    case "down":
      return [
        [x, y + big],
        [x + big, y - size],
        [x - big, y - size],
      ];
    case "diamond":
      return [
        [x, y - big * 1.1],
        [x + big * 1.1, y],
        [x, y + big * 1.1],
        [x - big * 1.1, y],
      ];
    case "bar":
      return [
        [x - big, y - thin],
        [x + big, y - thin],
        [x + big, y + thin],
        [x - big, y + thin],
      ];
    case "cross":
      return [
        [x - thin, y - big],
        [x + thin, y - big],
        [x + thin, y - thin],
        [x + big, y - thin],
        [x + big, y + thin],
        [x + thin, y + thin],
        [x + thin, y + big],
        [x - thin, y + big],
        [x - thin, y + thin],
        [x - big, y + thin],
        [x - big, y - thin],
        [x - thin, y - thin],
      ];
  }
}

export interface LegendItem {
  readonly name: string;
  readonly fill: Fill;
  /** A marker in place of a filled box. */
  readonly shape?: Shape;
  readonly value?: string;
  /** Told when it is pointed at. */
  readonly meaning?: string | undefined;
}

export function legend(prefix: string, items: readonly LegendItem[]): HTMLUListElement {
  const list = element("ul", "chart-legend");
  for (const item of items) {
    const line = element("li", "");
    line.append(swatch(prefix, item), element("span", "", item.name));
    if (item.meaning) line.title = item.meaning;
    if (item.value) line.append(element("span", "value", item.value));
    list.append(line);
  }
  return list;
}

function swatch(prefix: string, item: LegendItem): SVGSVGElement {
  const picture = svg("svg", { viewBox: "0 0 14 12", "aria-hidden": "true" });
  const fill = cssColour(item.fill.colour);
  if (item.shape === "circle") picture.append(svg("circle", { cx: 7, cy: 6, r: 4.5, fill }));
  else if (item.shape) {
    const points = corners(item.shape, 7, 6, 4).map((corner) => corner.join(","));
    picture.append(svg("polygon", { points: points.join(" "), fill }));
  } else picture.append(filled(prefix, item.fill, 0, 0, 14, 12));
  return picture;
}

/** How wide a text is, roughly: enough to decide whether it fits. */
export function roughWidth(text: string, size = 12): number {
  return text.length * size * 0.56;
}
