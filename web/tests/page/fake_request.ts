/** An XMLHttpRequest that is answered by a test, piece by piece. */
export class FakeRequest extends EventTarget {
  static readonly LOADING = 3;
  static answer: (asked: FakeRequest) => void = () => {};
  path = "";
  body = "";
  status = 0;
  statusText = "";
  responseText = "";
  readyState = 0;
  isAborted = false;

  open(_method: string, path: string): void {
    this.path = path;
  }

  setRequestHeader(): void {}

  send(body: string): void {
    this.body = body;
    FakeRequest.answer(this);
  }

  abort(): void {
    this.isAborted = true;
    this.#tell("abort");
  }

  /** Some more of the answer. */
  piece(text: string, status = 200): void {
    this.status = status;
    this.readyState = FakeRequest.LOADING;
    this.responseText += text;
    this.#tell("readystatechange");
  }

  end(name: "load" | "error" = "load"): void {
    this.dispatchEvent(new Event(name));
    this.#tell("loadend");
  }

  #tell(name: string): void {
    this.dispatchEvent(new Event(name));
  }
}
