/** The page: what is asked on the left, what comes of it on the right. */
import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { duration, gpuText, usd } from "../charts/format";
import { ownPlan, type Plan, type PlanDocument, planOf } from "../document";
import { Answer, jump } from "./Answer";
import { AnswerBar } from "./AnswerBar";
import { type Catalog, IS_SHARED, IS_SWEEP, catalog as readCatalog, shared } from "./api";
import { Copy } from "./Copy";
import { commandOf, optionsOf, wordsOf } from "./command";
import { FormPanel } from "./FormPanel";
import { fieldOf } from "./fields";
import { FIRST_VIEW, hashOf, stateOf, type View } from "./link";
import { Results } from "./Results";
import { repaired } from "./repairs";
import { exampleForm, type Form, formOf, type Pool, requestOf } from "./request";
import { Scenarios } from "./Scenarios";
import { scaled } from "./Sweep";
import { type Found, NOTHING_FOUND, Search } from "./search";
import { ThemeSwitch } from "./ThemeSwitch";
import { WhyNot } from "./WhyNot";

interface State {
  form: Form;
  view: View;
}

const CATALOG_AGAIN_MILLISECONDS = 3000;

function stateOfAddress(): State {
  const linked = stateOf(location.hash);
  return linked
    ? { form: IS_SHARED ? exampleForm() : formOf(linked.request), view: linked.view }
    : { form: exampleForm(), view: FIRST_VIEW };
}

export function App() {
  const [{ form, view }, setState] = useState(stateOfAddress);
  const [before, setBefore] = useState<State | null>(null);
  const [found, setFound] = useState(NOTHING_FOUND);
  // The best scenario of a sweep is opened in place of the example.
  const [waits, setWaits] = useState(IS_SWEEP && location.hash === "");
  const catalog = useCatalog();
  const search = useRef<Search | null>(null);
  search.current ??= new Search(setFound);

  const key = JSON.stringify(requestOf(form));
  const request = useMemo(() => JSON.parse(key), [key]);
  const isTyped = useRef(false);
  // Before the edit itself is painted: the server can already search while it is.
  useLayoutEffect(() => {
    if (IS_SHARED) void search.current?.open(shared);
    else if (request.text === "" || waits) search.current?.rest();
    else search.current?.start(request, isTyped.current);
    isTyped.current = false;
  }, [request, waits]);

  const hash = hashOf(IS_SHARED ? {} : request, view);
  const opened = useRef(hash);
  // The request whose answer the present entry of the history holds.
  const answered = useRef("");
  useEffect(() => {
    // The plain address stays plain until something is changed.
    if (hash === opened.current || hash === location.hash) return;
    // What was answered stays in the history: Back leads to it.
    const isNew = answered.current !== "" && answered.current !== key;
    history[isNew ? "pushState" : "replaceState"](null, "", hash);
    if (isNew) answered.current = "";
    opened.current = "";
  }, [hash]);
  useEffect(() => {
    if (found.state === "done" && found.isCurrent) answered.current = key;
  }, [found.state, found.isCurrent, key]);
  useEffect(() => {
    const read = (): void => {
      answered.current = "";
      setState(stateOfAddress());
    };
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);

  const command = commandOf(request, form.configName);
  const { document } = found;
  const plan = document
    ? (planOf(document, view.rank) ?? document.plans[0] ?? ownPlan(document))
    : null;
  const isStale = !found.isCurrent;
  // A script is no other answer to the question before.
  const previous = useLast(found);
  const last = document?.review ? null : previous;
  const names = useRef(new WeakMap<PlanDocument, string>());
  if (document && found.isCurrent && form.config) names.current.set(document, "Your model");
  useEffect(() => {
    globalThis.document.title = titleOf(found.isCurrent ? plan : null);
  }, [found.isCurrent, plan]);
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      // Lists and notes that it closes say so.
      if (event.key === "Escape" && !event.defaultPrevented) search.current?.cancel();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const look = (change: Partial<View>): void =>
    setState((state) => ({ ...state, view: { ...state.view, ...change } }));

  const change = (changed: Form, isChoice = false): void => {
    isTyped.current = !isChoice;
    setWaits(false);
    // Ranks of another search say nothing about the next one.
    if (!changed.own) setBefore(null);
    setState((state) => ({
      form: changed,
      view: { ...FIRST_VIEW, strategy: state.view.strategy },
    }));
  };
  // What was asked before comes back when the script is taken away.
  const bring = (own: Form | null): void => {
    isTyped.current = false;
    setBefore(own ? (form.own ? before : { form, view }) : null);
    setState(
      own ? { form: own, view: FIRST_VIEW } : (before ?? { form: exampleForm(), view: FIRST_VIEW }),
    );
  };
  // News of a search change neither the form nor plans: elements that stay are not looked at.
  const panel = useMemo(
    () => (
      <FormPanel
        form={form}
        catalog={catalog}
        error={found.error}
        onChange={change}
        onOwn={bring}
      />
    ),
    [form, catalog, found.error, before],
  );
  const isFinal = ["done", "cancelled", "failed"].includes(found.state);
  const targets = catalog?.targets;
  const shown = useRef<VNode | null>(null);
  const fresh = useMemo(
    () =>
      document && plan ? (
        <Results
          document={document}
          plan={plan}
          isFinal={isFinal}
          request={IS_SHARED ? null : request}
          command={
            IS_SHARED ? ["astrarium", "explain", "plan.json"] : wordsOf(request, form.configName)
          }
          targets={targets ?? []}
          view={view}
          onLook={look}
          onTake={(factor) =>
            change({ ...form, pools: scaled<Pool>(form.pools, factor) ?? form.pools }, true)
          }
        />
      ) : null,
    [document, plan, isFinal, request, targets, view],
  );
  // What answers an older request stays as it was until the next answer takes its place.
  if (!isStale || !document || !shown.current) shown.current = fresh;
  const results = shown.current;

  return (
    <>
      <button type="button" class="skip" onClick={() => jump("plans-title")}>
        Skip to the plans
      </button>
      {!IS_SHARED && (
        <button
          type="button"
          class="skip"
          onClick={() => globalThis.document.getElementById("model")?.focus()}
        >
          Skip to the form
        </button>
      )}
      <header class="top">
        <h1>Astrarium</h1>
        <p>
          {IS_SHARED
            ? "A saved answer: it can be looked at, and nothing is searched for."
            : "Which GPUs, how many, and how to split a Transformer across them."}
        </p>
        <div class="bar">
          <Copy text={() => new URL(hash, location.href).href}>Copy link</Copy>
          {!IS_SHARED && (
            <button
              type="button"
              title={before ? "Back to what was asked" : "The example that this page opens with"}
              onClick={() => {
                setBefore(before ? null : { form, view });
                setState(before ?? { form: exampleForm(), view: FIRST_VIEW });
              }}
            >
              {before ? "Undo" : "Example"}
            </button>
          )}
          <ThemeSwitch />
        </div>
      </header>
      <AnswerBar plan={plan} last={last} isStale={isStale} />
      {IS_SWEEP && <Scenarios onOpen={(question) => change(formOf(question), true)} />}
      <main class={IS_SHARED ? "shared" : ""}>
        <Answer
          found={found}
          last={last}
          plan={plan}
          modelName={(document && names.current.get(document)) ?? null}
          field={fieldOf(found.error)}
          onCancel={() => search.current?.cancel()}
          onAgain={() => search.current?.start(request, false)}
          onChoose={(rank) => look({ rank })}
          onCompare={(compare) => look({ compare })}
          onRepair={(repair) => change(repaired(form, repair), true)}
        />
        {!IS_SHARED && panel}
        <div
          class={isStale && document ? "results stale" : "results"}
          inert={isStale && document !== null}
        >
          {results ?? (
            <div class={found.state === "failed" ? "panel nothing" : "panel empty"}>
              {found.state === "failed" && (
                <p>Plans, pictures and files appear here once a plan is found.</p>
              )}
            </div>
          )}
          {!results && found.state === "failed" && (
            <WhyNot
              document={null}
              isFinal
              request={request}
              strategy={view.strategy}
              onChange={(strategy) => look({ strategy })}
            />
          )}
        </div>
        {!IS_SHARED && (
          <section class="panel command" aria-labelledby="command-title">
            <header>
              <h2 id="command-title">The same on the command line</h2>
              <Copy text={() => command}>Copy command</Copy>
            </header>
            <pre id="command">
              <code>
                {optionsOf(command).map((part) => (
                  <span key={part}>{part} </span>
                ))}
              </code>
            </pre>
          </section>
        )}
      </main>
    </>
  );
}

/** The best plan of the answer before the present one. */
function useLast(found: Found): Plan | null {
  const [plans, setPlans] = useState<readonly [Plan | null, Plan | null]>([null, null]);
  useEffect(() => {
    const best = found.document?.plans[0];
    if (found.state === "done" && best) setPlans(([, now]) => [now, best]);
  }, [found.state, found.document]);
  return plans[0];
}

/** What tells tabs apart. */
function titleOf(plan: Plan | null): string {
  if (!plan) return "Astrarium";
  const run = plan.train_seconds === null ? [] : [duration(plan.train_seconds)];
  const money = plan.usd_total === null ? [] : [usd(plan.usd_total)];
  return `${[gpuText(plan.gpus, true), ...run, ...money].join(", ")} · Astrarium`;
}

/** The lists to choose from; the page works without them, so they are asked for until they come. */
function useCatalog(): Catalog | null {
  const [catalog, setCatalog] = useState<Catalog | null>(null);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    readCatalog().then(setCatalog, () => {
      timer = setTimeout(() => setTries(tries + 1), CATALOG_AGAIN_MILLISECONDS);
    });
    return () => clearTimeout(timer);
  }, [tries]);
  return catalog;
}
