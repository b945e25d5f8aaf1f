import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { App } from "../../src/page/App";
import { hashOf } from "../../src/page/link";
import { FakeRequest } from "./fake_request";
import { plan } from "./plan";

const CATALOG = {
  gpus: [
    { name: "H100", aliases: ["h100"], memory_gib: 79, gpus_per_node: 8, usd_per_gpu_hour: 4 },
  ],
  models: [],
  targets: [{ name: "megatron", title: "Megatron-LM", version: "1", is_launcher: false }],
  runtimes: [],
  clouds: [],
};
const DOCUMENT = {
  schema: "astrarium.plan/1",
  workload: { model: "Llama-2-70B", parameters: 69e9, seq_length: 4096, global_batch: 1024 },
  cluster: { gpus: 64, pools: [] },
  search: {
    objective: "throughput",
    seconds: 1,
    space: 10,
    evaluated: 3,
    optimal: true,
    rejected: { bound: 900, memory: 100 },
    reasons: { tp_divides_heads: 5 },
    listed: 2,
  },
  plans: [plan(1), plan(2)],
};

let asked: { path: string; body: unknown }[];
let streamed: string;

beforeEach(() => {
  vi.useFakeTimers();
  asked = [];
  streamed = event("plans", DOCUMENT) + event("document", DOCUMENT);
  vi.stubGlobal("fetch", async (path: string, options: RequestInit) => {
    asked.push({ path, body: options.body ? JSON.parse(String(options.body)) : null });
    if (path === "/api/catalog") return Response.json(CATALOG);
    return Response.json({ error: { message: "not in this test", field: null } }, { status: 500 });
  });
  FakeRequest.answer = (one) => {
    asked.push({ path: one.path, body: JSON.parse(one.body) });
    one.piece(streamed);
    one.end();
  };
  vi.stubGlobal("XMLHttpRequest", FakeRequest);
  vi.stubGlobal(
    "ResizeObserver",
    class {
      observe(): void {}
      disconnect(): void {}
    },
  );
  location.hash = "";
  document.body.innerHTML = '<div id="app"></div>';
});
afterEach(() => {
  render(null, place());
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function event(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

function place(): HTMLElement {
  return document.getElementById("app") as HTMLElement;
}

async function wait(milliseconds: number): Promise<void> {
  await act(async () => {
    await vi.advanceTimersByTimeAsync(milliseconds);
  });
}

async function open(): Promise<void> {
  act(() => render(<App />, place()));
  await wait(20);
}

async function type(id: string, text: string, milliseconds = 300): Promise<void> {
  const field = document.getElementById(id) as HTMLInputElement;
  field.value = text;
  act(() => {
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
  await wait(milliseconds);
}

const text = (selector: string): string => document.querySelector(selector)?.textContent ?? "";
const searches = (): unknown[] =>
  asked.filter(({ path }) => path === "/api/plan/stream").map(({ body }) => body);

test("opens on the example, with its answer", async () => {
  await open();
  expect(searches()).toMatchObject([
    { model: "llama-2-70b", pools: [{ type: "h100", count: "64" }] },
  ]);
  expect(text(".best")).toContain("tp 4 · pp 8 · dp 2");
  expect(document.querySelectorAll(".plans tbody tr").length).toBe(2);
  expect(location.hash).toBe("");
});

test("an edit asks again, and the address tells", async () => {
  await open();
  await type("global_batch", "512");
  expect(searches()[1]).toMatchObject({ global_batch: "512" });
  expect(location.hash).not.toBe("");
  expect(text("#command")).toContain("--global-batch 512");
});

test("what is chosen and what is typed is searched at once", async () => {
  await open();
  const choice = document.getElementById("objective") as HTMLSelectElement;
  choice.value = "cost";
  act(() => {
    choice.dispatchEvent(new Event("change", { bubbles: true }));
  });
  await wait(1);
  expect(searches()[1]).toMatchObject({ objective: "cost" });
  await type("tokens", "1", 0);
  expect(searches()[2]).toMatchObject({ tokens: "1" });
});

test("what is wrong stands beside its field, and old plans are marked", async () => {
  await open();
  streamed = event("error", {
    message: "“Tokens in all” 'x': not a number",
    field: "tokens",
    status: 422,
  });
  await type("tokens", "x", 400);
  expect(text("#tokens-message")).toContain("“Tokens in all” 'x': not a number");
  expect(document.getElementById("tokens")?.getAttribute("aria-invalid")).toBe("true");
  expect(document.querySelector(".results")?.className).toContain("stale");
});

test("what is wrong with no field stands above the plans", async () => {
  streamed = event("error", { message: "nothing fits", field: null, status: 409 });
  await open();
  expect(text(".status p")).toContain("nothing fits");
});

test("a link opens what it was made of", async () => {
  const request = { model: "gpt2-xl", pools: [{ type: "v100", count: "16" }], global_batch: "32" };
  location.hash = hashOf(request, { rank: 2, compare: [], strategy: "" });
  await open();
  expect(searches()).toEqual([request]);
  expect(text(".best")).toContain("Plan 2");
});

test("rows of GPUs come and go", async () => {
  await open();
  act(() => document.getElementById("add-pool")?.click());
  await wait(300);
  expect(searches()[1]).toMatchObject({ pools: [{ type: "h100" }, { type: "a100", count: "8" }] });
  act(() => (document.querySelector('[aria-label^="Remove row 1"]') as HTMLElement).click());
  await wait(300);
  expect(searches()[2]).toMatchObject({ pools: [{ type: "a100", count: "8" }] });
});

test("escape cancels a search, and the best so far stays", async () => {
  FakeRequest.answer = (one) => {
    if (one.path === "/api/plan/stream") one.piece(event("plans", DOCUMENT));
  };
  await open();
  expect(text(".best")).toContain("Best so far");
  act(() => {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  });
  expect(text(".status p")).toContain("Cancelled");
  expect(document.querySelectorAll(".plans tbody tr").length).toBe(2);
});

test("a mistake leads to its field", async () => {
  streamed = event("error", { message: "no such GPU", field: "pools[0]", status: 422 });
  await open();
  await wait(1000);
  const lead = [...document.querySelectorAll<HTMLElement>(".status button")][0];
  expect(lead?.textContent).toContain("Go to the field");
  lead?.click();
  expect(document.activeElement?.id).toBe("pool-0-type");
});
