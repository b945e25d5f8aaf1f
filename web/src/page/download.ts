/** Hands a file to the user. */
export function download(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  // Some browsers only begin to read after the click was handled.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A name that every file system takes. */
export function fileName(text: string): string {
  return text.replaceAll(/[^\w.-]+/g, "-").replaceAll(/^[-.]+|-+$/g, "") || "plan";
}

/** What is drawn in a place: as SVG where it is one, else as PNG. */
export async function savePicture(place: HTMLElement, title: string): Promise<void> {
  const drawn = place.querySelector<SVGSVGElement>(".chart-box > svg");
  const name = fileName(title.toLowerCase());
  if (drawn) {
    const type = "image/svg+xml";
    download(
      `${name}.svg`,
      new Blob([new XMLSerializer().serializeToString(alone(drawn))], { type }),
    );
    return;
  }
  const image = await imageOf([
    ...place.querySelectorAll<HTMLCanvasElement>(".chart-box > canvas"),
  ]);
  if (image) download(`${name}.png`, image);
}

/** A copy that needs no style sheet. */
function alone(drawn: SVGSVGElement): SVGSVGElement {
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const { width, height } = drawn.getBoundingClientRect();
  const copies = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  for (const [index, from] of [drawn, ...drawn.querySelectorAll<SVGElement>("*")].entries()) {
    const style = getComputedStyle(from);
    for (const name of ["fill", "stroke", "font"]) {
      copies[index]?.style.setProperty(name, style.getPropertyValue(name));
    }
  }
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.style.background = panelColour(drawn);
  return copy;
}

function panelColour(place: Element): string {
  const panel = place.closest(".panel");
  return panel ? getComputedStyle(panel).backgroundColor : "white";
}

/** Canvases that lie above each other as one PNG, on the colour of the page. */
export function imageOf(layers: readonly HTMLCanvasElement[]): Promise<Blob | null> {
  const made = document.createElement("canvas");
  made.width = layers[0]?.width ?? 0;
  made.height = layers[0]?.height ?? 0;
  const context = made.getContext("2d");
  if (!context || made.width === 0) return Promise.resolve(null);
  context.fillStyle = layers[0] ? panelColour(layers[0]) : "white";
  context.fillRect(0, 0, made.width, made.height);
  for (const layer of layers) context.drawImage(layer, 0, 0);
  return new Promise((done) => made.toBlob(done));
}
