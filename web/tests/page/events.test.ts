import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { EventParser, type ServerEvent, streamed } from "../../src/page/events";
import { FakeRequest } from "./fake_request";

const TEXT = 'event: progress\ndata: {"done":1}\n\n: beat\n\nevent: document\ndata: a\ndata: b\n\n';
const EVENTS = [
  { name: "progress", data: '{"done":1}' },
  { name: "document", data: "a\nb" },
];

describe("events of a stream", () => {
  test("wherever the text is cut", () => {
    for (let cut = 0; cut <= TEXT.length; cut++) {
      const parser = new EventParser();
      const found = [...parser.push(TEXT.slice(0, cut)), ...parser.push(TEXT.slice(cut))];
      expect(found).toEqual(EVENTS);
    }
  });

  test("with any ends of lines, letter by letter", () => {
    for (const end of ["\n", "\r\n", "\r"]) {
      const parser = new EventParser();
      // A last carriage return is only known to end a line by what follows.
      const text = `${TEXT.replaceAll("\n", end)}:\n`;
      expect([...text].flatMap((letter) => parser.push(letter))).toEqual(EVENTS);
    }
  });

  test("what is not finished is not told", () => {
    expect(new EventParser().push("event: document\ndata: half\n")).toEqual([]);
  });
});

describe("a request for events", () => {
  let asked: FakeRequest;
  let heard: ServerEvent[];
  let own: AbortController;

  beforeEach(() => {
    FakeRequest.answer = (one) => {
      asked = one;
    };
    vi.stubGlobal("XMLHttpRequest", FakeRequest);
    heard = [];
    own = new AbortController();
  });
  afterEach(() => {
    vi.unstubAllGlobals();
  });
  const ask = () => streamed("/api/x", "{}", own.signal, (event) => heard.push(event));

  test("tells events as they come", async () => {
    const ended = ask();
    asked.piece(TEXT.slice(0, 40));
    expect(heard).toEqual(EVENTS.slice(0, 1));
    asked.piece(TEXT.slice(40));
    expect(heard).toEqual(EVENTS);
    asked.end();
    expect(await ended).toMatchObject({ status: 200, text: TEXT });
  });

  test("a refusal has no events", async () => {
    const ended = ask();
    asked.piece('{"error":{}}\n\n', 422);
    asked.end();
    expect(await ended).toMatchObject({ status: 422 });
    expect(heard).toEqual([]);
  });

  test("who leaves ends it; who has its answer does not", async () => {
    const left = ask();
    own.abort();
    await expect(left).rejects.toThrow("left");
    expect(asked.isAborted).toBe(true);
    await expect(ask()).rejects.toThrow("left");
    own = new AbortController();
    const ended = ask();
    asked.piece(TEXT);
    asked.end();
    await ended;
    own.abort();
    expect(asked.isAborted).toBe(false);
  });

  test("a lost connection fails", async () => {
    const ended = ask();
    asked.piece(TEXT);
    asked.end("error");
    await expect(ended).rejects.toThrow("lost");
  });
});
