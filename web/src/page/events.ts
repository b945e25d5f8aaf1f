/** Server-sent events, read from the body of an answer as it comes. */

/** Of every question: messages speak of the fields of the form. */
export const HEADERS = { "content-type": "application/json", "x-astrarium-reader": "form" };

export interface ServerEvent {
  name: string;
  data: string;
}

/** Collects pieces of text, wherever they were cut, into events. */
export class EventParser {
  #rest = "";
  #name = "";
  #data: string[] = [];

  /** The events that are complete after this piece. */
  push(piece: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    const all = this.#rest + piece;
    // A carriage return at the end may be half of a line's end.
    const whole = all.endsWith("\r") ? all.slice(0, -1) : all;
    const parts = whole.split(/\r\n|\n|\r/);
    this.#rest = (parts.pop() ?? "") + all.slice(whole.length);
    for (const line of parts) {
      if (line === "") {
        if (this.#data.length > 0) {
          found.push({ name: this.#name || "message", data: this.#data.join("\n") });
        }
        this.#name = "";
        this.#data = [];
      } else this.#read(line);
    }
    return found;
  }

  #read(line: string): void {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
  }
}

/** What was answered in the end: all of the text, also where it held events. */
export interface Ended {
  status: number;
  statusText: string;
  text: string;
}

/**
 * Asks for events, and tells each as it comes; fails if the connection is lost or left.
 *
 * Not with `fetch`: whoever reads a body to its end there may be faster than the browser's own news
 * that the request is complete, which it then reports as aborted.
 */
export function streamed(
  path: string,
  body: string,
  signal: AbortSignal,
  heard: (event: ServerEvent) => void,
): Promise<Ended> {
  return new Promise((ended, failed) => {
    const asked = new XMLHttpRequest();
    const parser = new EventParser();
    let read = 0;
    const leave = (): void => asked.abort();
    const listen = (): void => {
      if (asked.status !== 200) return;
      const piece = asked.responseText.slice(read);
      read += piece.length;
      for (const event of parser.push(piece)) heard(event);
    };
    asked.addEventListener("readystatechange", () => {
      if (asked.readyState === XMLHttpRequest.LOADING) listen();
    });
    asked.addEventListener("load", () => {
      listen();
      const { status, statusText, responseText: text } = asked;
      ended({ status, statusText, text });
    });
    asked.addEventListener("error", () => failed(new TypeError("the connection is lost")));
    asked.addEventListener("abort", () => failed(new DOMException("left", "AbortError")));
    asked.addEventListener("loadend", () => signal.removeEventListener("abort", leave));
    asked.open("POST", path);
    asked.setRequestHeader("accept", "text/event-stream");
    for (const [name, value] of Object.entries(HEADERS)) asked.setRequestHeader(name, value);
    if (signal.aborted) {
      failed(new DOMException("left", "AbortError"));
      return;
    }
    signal.addEventListener("abort", leave);
    asked.send(body);
  });
}
