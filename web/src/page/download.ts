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

/** Canvases that lie above each other as one PNG, on the colour of the page. */
export function imageOf(layers: readonly HTMLCanvasElement[]): Promise<Blob | null> {
  const made = document.createElement("canvas");
  made.width = layers[0]?.width ?? 0;
  made.height = layers[0]?.height ?? 0;
  const context = made.getContext("2d");
  if (!context || made.width === 0) return Promise.resolve(null);
  const panel = layers[0]?.closest(".panel");
  context.fillStyle = panel ? getComputedStyle(panel).backgroundColor : "white";
  context.fillRect(0, 0, made.width, made.height);
  for (const layer of layers) context.drawImage(layer, 0, 0);
  return new Promise((done) => made.toBlob(done));
}
