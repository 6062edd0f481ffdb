"use strict";
// The page of `retcon view`. Text of trajectories only ever becomes text nodes: nothing here sets HTML.
(() => {
const { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } = htmPreact;

// ---- state: the URL's fragment, `#/list?step=30&failed=1`, `#/one/0/1234`, `#/group/0/task/30`, `#/runs`

function parse() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  return { page: parts[0] || "list", parts: parts.slice(1), query: Object.fromEntries(new URLSearchParams(search || "")) };
}
function address(page, parts = [], query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(kept).toString();
  return "#/" + [page, ...parts].map(encodeURIComponent).join("/") + (search ? "?" + search : "");
}
const go = (...where) => { location.hash = address(...where); };
function amend(changes) {
  const now = parse();
  history.replaceState(null, "", address(now.page, now.parts, { ...now.query, ...changes }));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
const useRoute = () => {
  const [route, set] = useState(parse);
  useEffect(() => {
    const changed = () => set(parse());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
};

// ---- the server

async function ask(what, about = {}) {
  const kept = Object.entries(about).filter(([, value]) => value !== "" && value != null);
  const answer = await fetch(`api/${what}?${new URLSearchParams(kept)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}
// The answer to the newest question; an older one that comes late is dropped.
function useAnswer(what, about, again = 0) {
  const key = what + JSON.stringify(about);
  const [state, set] = useState({});
  useEffect(() => {
    let over = false;
    if (what) ask(what, about).then(
      (found) => over || set({ key, found }),
      (error) => over || set({ key, error: error.message }));
    return () => { over = true; };
  }, [key, again]);
  return state;
}
const useTick = (seconds) => {
  const [tick, set] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || set((n) => n + 1), seconds * 1000);
    return () => clearInterval(timer);
  }, []);
  return tick;
};

// ---- text

const NAMES = { 27: "␛", 0: "␀", 8: "␈", 13: "␍", 12: "␌" };
// Characters that hide or turn text are shown by their code: what was written stays visible.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
  (c) => NAMES[c.charCodeAt(0)] || `⟨${c.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
const SHOWN = 20000;
function Text({ text, code = false, find = "" }) {
  const [all, setAll] = useState(false);
  const cut = !all && text.length > SHOWN;
  const shown = visible(cut ? text.slice(0, SHOWN) : text);
  return html`<pre class=${code ? "code" : "text"} dir="auto">${code && shown.length <= SHOWN * 5 ? highlighted(shown, find) : marked(shown, find)}</pre>
    ${cut && html`<button class="more" onClick=${() => setAll(true)}>show all ${text.length.toLocaleString()} characters</button>`}`;
}
function marked(text, find) {
  const words = find.match(/[\p{L}\p{N}_]+/gu);
  if (!words) return text;
  const pattern = new RegExp("(" + words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("[^\\p{L}\\p{N}_]+") + ")", "giu");
  return text.split(pattern).map((part, n) => n % 2 ? html`<mark>${part}</mark>` : part);
}
const PYTHON = /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|[rbfRBF]{0,2}"(?:\\.|[^"\\\n])*"?|[rbfRBF]{0,2}'(?:\\.|[^'\\\n])*'?)|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\d_.eE]*)\b/g;
const KINDS = ["comment", "string", "keyword", "number"];
function highlighted(text, find) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(PYTHON)) {
    if (match.index > from) found.push(marked(text.slice(from, match.index), find));
    const kind = KINDS[match.slice(1).findIndex((group) => group !== undefined)];
    found.push(html`<span class=${"py-" + kind}>${marked(match[0], find)}</span>`);
    from = match.index + match[0].length;
  }
  found.push(marked(text.slice(from), find));
  return found;
}
const number = (value, digits = 3) => value == null ? "–" : typeof value !== "number" ? String(value)
  : Number.isInteger(value) ? value.toLocaleString() : value.toFixed(digits);

// ---- the list

const COLUMNS = [
  ["name", "rollout", "wide"], ["question", "question", "wide soft"], ["step", "step", "num"], ["reward", "reward", "num"],
  ["answer", "answer", ""], ["expected", "expected", ""], ["failures", "failed", "num"], ["errors", "errors", ""],
  ["repair", "repair", ""], ["selection", "selection", ""], ["advantage", "advantage", "num"], ["turns", "turns", "num"],
  ["tokens", "tokens", "num"], ["seconds", "seconds", "num"],
];
const SORTABLE = new Set(["name", "step", "reward", "failures", "turns", "tokens", "advantage", "seconds"]);
const ROW = 30, PAGE = 100;

function usePages(query, total, again) {
  const key = JSON.stringify(query);
  const pages = useRef({ key: "", at: new Map() });
  const [, redraw] = useState(0);
  if (pages.current.key !== key + again) pages.current = { key: key + again, at: new Map(), old: pages.current };
  const held = pages.current;
  return (index) => {
    const page = Math.floor(index / PAGE);
    if (!held.at.has(page)) {
      held.at.set(page, []);
      if (held.at.size > 60) held.at.delete(held.at.keys().next().value);
      ask("rows", { ...query, offset: page * PAGE, limit: PAGE }).then((rows) => {
        held.at.set(page, rows);
        held.old = null;
        if (pages.current === held) redraw((n) => n + 1);
      }, () => {});
    }
    return held.at.get(page)?.[index - page * PAGE] || held.old?.at?.get(page)?.[index - page * PAGE];
  };
}

function List({ query, runs }) {
  const tick = useTick(5);
  const running = runs.some((run) => !run.finished || run.indexing);
  const counted = useAnswer("counts", query, running ? tick : 0);
  const total = counted.found?.total ?? 0;
  const row = usePages(query, total, total);
  const box = useRef(), head = useRef();
  const [view, setView] = useState({ from: 0, count: 40 });
  const [chosen, choose] = useState(0);
  const look = () => {
    const from = Math.floor(box.current.scrollTop / ROW);
    setView({ from, count: Math.ceil(box.current.clientHeight / ROW) + 2 });
    head.current.scrollLeft = box.current.scrollLeft;
  };
  useLayoutEffect(() => {
    look();
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  const key = JSON.stringify(query);
  useEffect(() => { box.current.scrollTop = 0; choose(0); }, [key]);
  const open = (found) => found && go("one", [found.run, found.id], { text: query.text });
  const keyed = (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: view.count - 3, PageUp: 3 - view.count, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Enter") open(row(chosen));
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(total - 1, chosen + step));
    choose(next);
    const top = next * ROW, element = box.current;
    if (top < element.scrollTop) element.scrollTop = top;
    if (top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW - element.clientHeight;
  };
  const shown = [];
  for (let n = view.from; n < Math.min(total, view.from + view.count); n++) {
    const found = row(n);
    shown.push(html`<div key=${n} id=${"row" + n} role="row" aria-rowindex=${n + 2} aria-selected=${n === chosen} class=${"row" + (n === chosen ? " chosen" : "")}
        style=${{ top: n * ROW + "px" }} onClick=${() => { choose(n); open(found); }}>
      ${found ? COLUMNS.map(([name, , kind]) => html`<span role="gridcell" key=${name} data-column=${name} class=${"cell " + kind + (name === "reward" ? " " + found.verdict : "")} title=${visible(String(found[name] ?? ""))}>
        ${name === "question" && found.found?.length ? html`<em>in ${found.found.join(", ")}</em> ` : ""}${visible(found[name] == null ? "–" : typeof found[name] === "number" ? number(found[name]) : found[name])}</span>`)
        : html`<span role="gridcell" class="cell soft">…</span>`}
    </div>`);
  }
  const sort = query.sort || "id";
  return html`<main class="list">
    <${Filters} query=${query} counts=${counted.found} error=${counted.error} runs=${runs} />
    <section class="table">
      <p class="status" role="status">${counted.found ? html`<b>${total.toLocaleString()}</b> ${total === 1 ? "rollout" : "rollouts"}${counted.found.indexing ? ", still indexing" : ""}` : "…"}
        ${" "}<a href=${"api/export?" + new URLSearchParams(query)} download>export as JSONL</a></p>
      <div class="head" role="row" ref=${head}>${COLUMNS.map(([name, title, kind]) => SORTABLE.has(name)
        ? html`<button key=${name} class=${"cell " + kind} aria-label=${"sort by " + title} onClick=${() => amend({ sort: sort === "-" + name ? name : "-" + name })}>${title}${sort === name ? " ↑" : sort === "-" + name ? " ↓" : ""}</button>`
        : html`<span key=${name} class=${"cell " + kind}>${title}</span>`)}</div>
      <div class="rows" role="grid" aria-label="rollouts" aria-rowcount=${total + 1} aria-activedescendant=${"row" + chosen} tabindex="0" ref=${box} onScroll=${look} onKeyDown=${keyed}>
        <div class="space" style=${{ height: total * ROW + "px" }}>${shown}</div>
        ${counted.found && !total && html`<p class="empty">No rollout fits these filters.</p>`}
      </div>
    </section>
  </main>`;
}

const FACETS = [["verdict", "judged"], ["errors", "error"], ["repair", "repair"], ["selection", "selection"], ["stop", "ended by"]];
function Filters({ query, counts, error, runs }) {
  const [text, setText] = useState(query.text || "");
  const typed = useRef();
  useEffect(() => setText(query.text || ""), [query.text]);
  const search = (value) => {
    setText(value);
    clearTimeout(typed.current);
    typed.current = setTimeout(() => amend({ text: value }), 60);
  };
  const field = (name, label, more = {}) => html`<label>${label}<input value=${query[name] || ""} onChange=${(e) => amend({ [name]: e.target.value.trim() })} ...${more} /></label>`;
  return html`<form class="filters" onSubmit=${(e) => e.preventDefault()} aria-label="filters">
    <div class="search"><input type="search" id="search" placeholder="search words, code, output ( / )" aria-label="search" value=${text} onInput=${(e) => search(e.target.value)} />
      <select aria-label="field to search" value=${query.field || ""} onChange=${(e) => amend({ field: e.target.value })}>
        ${[["", "anywhere"], ["question", "question"], ["words", "model's words"], ["code", "code"], ["output", "output"]].map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <details open=${innerWidth > 700}><summary>filters${Object.keys(query).length ? ` (${Object.keys(query).length})` : ""}</summary>
    ${runs.length > 1 && html`<label>run<select value=${query.run || ""} onChange=${(e) => amend({ run: e.target.value })}>
      <option value="">all</option>${runs.map((run, n) => html`<option value=${String(n)}>${run.name}</option>`)}</select></label>`}
    <div class="pair">${field("step", "step", { placeholder: "30 or 30-39" })}${field("task", "task")}${field("group", "group", { placeholder: "task/step" })}${field("tag", "tag")}</div>
    <label class="check"><input type="checkbox" checked=${"failed" in query} onChange=${(e) => amend({ failed: e.target.checked ? "1" : "" })} /> a call failed</label>
    <label class="check"><input type="checkbox" checked=${"dropped" in query} onChange=${(e) => amend({ dropped: e.target.checked ? "1" : "" })} /> dropped from training</label>
    ${FACETS.map(([facet, title]) => {
      const name = facet === "errors" ? "error" : facet, values = Object.entries(counts?.facets[facet] || {}).filter(([value]) => value).sort((a, b) => b[1] - a[1]);
      if (facet === "repair" && values.length) values.push(["none", counts.facets.repair[""] ?? counts.total - values.reduce((sum, [, n]) => sum + n, 0)]);
      if (query[name] && !values.some(([value]) => value === query[name])) values.push([query[name], 0]);
      return values.length > 0 && html`<fieldset key=${facet}><legend>${title}</legend>${values.slice(0, 12).map(([value, count]) => html`
        <button type="button" key=${value} aria-pressed=${query[name] === value} class="facet" onClick=${() => amend({ [name]: query[name] === value ? "" : value })}>
          <span>${visible(value)}</span><span class="soft">${Math.max(0, count).toLocaleString()}</span></button>`)}</fieldset>`;
    })}
    ${Object.keys(query).length > 0 && html`<button type="button" onClick=${() => go("list")}>clear all filters</button>`}
    </details>
  </form>`;
}

// ---- one trajectory

const written = (turn) => turn.segments.filter((s) => s.kind === "sampled" || s.kind === "spliced");
const textOf = (turn) => written(turn).map((s) => s.text).join("");
const codeOf = (call) => typeof call.arguments === "string" ? call.arguments : call.arguments.code ?? JSON.stringify(call.arguments, null, 1);

function One({ run, id, find }) {
  const line = useAnswer("line", { run, id });
  const tokens = useAnswer("tokens", { run, id });
  const [mode, setMode] = useState("text");
  const made = line.found;
  useEffect(() => {
    const keyed = (event) => {
      if (event.target.matches?.("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
      const next = { t: "tokens", x: "text", r: "raw" }[event.key];
      if (next) setMode(next);
      if (event.key === "u" && made) go("group", [run, made.task, made.provenance?.step ?? ""]);
    };
    addEventListener("keydown", keyed);
    return () => removeEventListener("keydown", keyed);
  }, [made]);
  if (line.error) return html`<main class="one"><p class="error" role="alert">${line.error}</p></main>`;
  if (!made || line.key !== "line" + JSON.stringify({ run, id })) return html`<main class="one"><p>…</p></main>`;
  const training = made.training || {}, step = made.provenance?.step;
  const facts = [
    ["reward", html`<b class=${made.reward > 0 ? "right" : made.reward == null ? "" : "wrong"}>${number(made.reward)}</b>`], ["judged", made.reason], ["answer", made.answer],
    ["expected", made.expected], ["ended by", made.stop ?? "answer"], ["selection", made.selection && html`${made.selection} <span class="soft">${WHY[made.selection] || ""}</span>`],
    ["advantage", training.advantage == null ? null : number(training.advantage)], ["staleness", training.staleness], ["seconds", training.seconds], ["step", step],
    ["parent", made.branch && `${made.branch.parent}, after turn ${made.branch.turns}`], ["weights", made.provenance?.model],
  ].filter(([, value]) => value != null && value !== "");
  return html`<main class="one">
    <h1>${visible(made.id)}</h1>
    <p class="tools"><a href=${address("group", [run, made.task, step ?? ""])}>its group (u)</a>
      ${[["text", "text (x)"], ["tokens", "tokens (t)"], ["raw", "raw JSON (r)"]].map(([name, title]) => html`<button aria-pressed=${mode === name} onClick=${() => setMode(name)}>${title}</button>`)}</p>
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd dir="auto">${typeof value === "string" ? visible(value).slice(0, 2000) : value}</dd></div>`)}</dl>
    <${Note} run=${run} id=${made.id} />
    ${mode === "raw" ? html`<${Text} text=${JSON.stringify(made, null, 1)} find=${find} />`
      : mode === "tokens" ? html`<${Tokens} made=${made} pieces=${tokens.found} />`
      : html`<details open><summary>prompt</summary><${Text} text=${made.prompt.map((s) => s.text).join("")} find=${find} /></details>
        ${made.turns.map((turn, n) => html`<${Turn} turn=${turn} number=${n + 1} run=${run} find=${find} />`)}`}
  </main>`;
}
const WHY = {
  kept: "trained on", penalty: "right, with a higher penalty than every right one that was kept", drawn: "right, and not drawn", wrong: "wrong, and not drawn",
  flat: "its group's rewards are equal", few: "fewer than two of its group could be compared", masked: "out of the loss by rl.void_turns or rl.truncated",
  infrastructure: "lost to a fault", selection: "by the selection",
};

function Turn({ turn, number: n, run, find }) {
  const repair = turn.repair, replaced = repair && ["shallow", "deep", "resampled", "described"].includes(repair.decision);
  return html`<section class="turn" aria-label=${"turn " + n}>
    <h2>turn ${n}${repair ? html` <span class=${"badge " + (replaced ? "repaired" : "")}>${repair.decision}</span> <span class="soft">${visible(repair.reason || "")}${repair.similarity != null ? `, similarity ${number(repair.similarity)}` : ""}, ${repair.attempts} ${repair.attempts === 1 ? "attempt" : "attempts"}</span>` : ""}</h2>
    ${repair && turn.abandoned?.length ? html`<div class="sides"><div class="side"><h3>raw: as it was sampled</h3>${(replaced ? [] : [turn]).concat(turn.abandoned).map((attempt, k) => html`<h4>${k === 0 ? "the failure" : "attempt " + k}</h4><${Attempt} turn=${attempt} run=${run} find=${find} />`)}</div>
      <div class="side"><h3>purified: what is learnt from</h3><${Attempt} turn=${turn} run=${run} find=${find} spliced=${replaced} /></div></div>`
      : html`<${Attempt} turn=${turn} run=${run} find=${find} />`}
  </section>`;
}
function Attempt({ turn, run, find, spliced = false }) {
  const text = textOf(turn), first = turn.calls?.[0]?.char ?? text.length;
  const marks = spliced && written(turn).some((s) => s.kind === "spliced");
  return html`<div class=${"attempt" + (marks ? " spliced" : "")}>
    ${marks && html`<p class="splice">${written(turn).map((s) => `${s.ids?.length ?? s.text.length} ${s.ids ? "tokens" : "characters"} ${s.kind}`).join(" | ")}</p>`}
    ${text.slice(0, first).trim() && html`<${Text} text=${text.slice(0, first).trim()} find=${find} />`}
    ${(turn.calls || []).map((call, n) => {
      const seen = turn.observations?.[n];
      const error = seen && !["ok", "infrastructure"].includes(seen.status ?? "ok");
      return html`<div class=${"call" + (error ? " failed" : "")}><${Text} text=${codeOf(call)} code find=${find} />
        ${seen && html`<p class="seen"><span class=${error ? "wrong" : "right"}>${seen.status}${seen.error_type ? ": " + visible(seen.error_type) : ""}</span> <span class="soft">${number(seen.seconds ?? 0)} s</span>
          ${error && html` <a href=${address("list", [], { run, error: seen.error_type || seen.status, text: (seen.text.trim().split("\n").pop() || "").slice(0, 200), field: "output" })}>does it come back?</a>`}</p>
          <${Text} text=${seen.text} find=${find} />`}</div>`;
    })}
    ${!turn.calls?.length && first < text.length && html`<${Text} text=${text.slice(first)} find=${find} />`}
  </div>`;
}

// Per token: what the loss saw. Derived as Retcon derives it: the mask by the segments' kinds unless the step had another.
function tokensOf(made, pieces) {
  const training = made.training || {}, found = [];
  const segments = [...made.prompt.map((s) => [s, null]), ...made.turns.flatMap((t) => t.segments.map((s) => [s, t]))];
  const runs = training.mask, mask = [];
  if (runs) runs.forEach((length, n) => { for (let k = 0; k < length; k++) mask.push(n % 2); });
  segments.forEach(([segment, turn], n) => {
    const learnt = segment.kind === "sampled" || segment.kind === "spliced";
    const before = segment.kind === "spliced" && turn.abandoned?.length ? lookahead(turn, segment) : null;
    (segment.ids || []).forEach((id, k) => {
      const at = found.length, weight = mask.length ? mask[at] : +learnt;
      found.push({ id, text: pieces?.[n]?.[k], kind: segment.kind, logprob: segment.logprobs?.[k], before: before?.[k], mask: weight,
        version: segment.versions?.[k], advantage: weight ? training.advantages?.[at] ?? training.advantage : null, weight: training.weights?.[at] });
    });
  });
  return found;
}
// The log-probs of spliced ids as they were sampled, after the failure: those of the fix, the last attempt.
function lookahead(turn, segment) {
  const fix = written(turn.abandoned[turn.abandoned.length - 1]);
  const ids = fix.flatMap((s) => s.ids || []), probabilities = fix.flatMap((s) => s.logprobs || (s.ids || []).map(() => null));
  for (let from = ids.length - segment.ids.length; from >= 0; from--)
    if (segment.ids.every((id, k) => ids[from + k] === id)) return probabilities.slice(from, from + segment.ids.length);
  return null;
}
const COLOURS = {
  "log-prob": (t) => t.logprob == null ? "" : "heat" + Math.min(9, Math.floor(-t.logprob * 2)),
  "prefixes": (t) => t.before == null || t.logprob == null ? "" : (t.logprob < t.before ? "below" : "above") + Math.min(9, Math.floor(Math.abs(t.logprob - t.before) * 3)),
  advantage: (t) => !t.advantage ? "" : (t.advantage < 0 ? "below" : "above") + Math.min(9, Math.floor(Math.abs(t.advantage) * 3)),
  mask: (t) => t.mask ? "above4" : "",
  weight: (t) => t.weight == null ? "" : "heat" + Math.min(9, Math.floor(Math.abs(1 - t.weight) * 9)),
  kind: (t) => "kind-" + t.kind,
};
function Tokens({ made, pieces }) {
  const all = useMemo(() => tokensOf(made, pieces), [made, pieces]);
  const [colour, setColour] = useState("kind"), [at, setAt] = useState(-1), [most, setMost] = useState(3000);
  if (!all.length) return html`<p>This trajectory has no token ids.</p>`;
  const over = (event) => { const n = event.target.dataset?.n; if (n !== undefined) setAt(+n); };
  const t = all[at];
  return html`<div class="tokens"><p class="tools">colour by ${Object.keys(COLOURS).map((name) => html`<button aria-pressed=${colour === name} onClick=${() => setColour(name)}>${name}</button>`)}</p>
    <p class="token-facts" role="status">${t ? html`<b>${visible(JSON.stringify(t.text ?? ""))}</b> id ${t.id} · ${t.kind} · log-prob ${number(t.logprob, 4)}${t.logprob != null ? ` (p ${number(Math.exp(t.logprob), 4)})` : ""}${t.before != null ? ` · under the lookahead's prefix ${number(t.before, 4)}` : ""} · advantage ${number(t.advantage)} · mask ${t.mask} · weight ${number(t.weight ?? (t.mask ? 1 : null))}${t.version != null ? ` · weights of step ${t.version}` : ""}`
      : `${all.length.toLocaleString()} tokens, ${all.filter((one) => one.mask).length.toLocaleString()} in the loss; point at one${pieces ? "" : " (no tokenizer found beside the run: ids are shown)"}`}</p>
    <pre class="stream" onMouseOver=${over} onFocusIn=${over}>${all.slice(0, most).map((one, n) => html`<span tabindex=${n === 0 ? 0 : -1} data-n=${n} key=${n} class=${"token " + COLOURS[colour](one)}>${one.text === undefined ? one.id + " " : visible(one.text)}</span>`)}</pre>
    ${all.length > most && html`<button class="more" onClick=${() => setMost(most * 10)}>show more of ${all.length.toLocaleString()} tokens</button>`}</div>`;
}

function Note({ run, id }) {
  const notes = useAnswer("notes", { run });
  const there = notes.found?.[id] || {};
  const [saved, setSaved] = useState("");
  const save = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target), tags = form.get("tags").split(/[\s,]+/).filter(Boolean);
    const answer = await fetch("api/note", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ run, id, tags, note: form.get("note") }) });
    setSaved(answer.ok ? "saved" : "not saved: " + answer.statusText);
  };
  return html`<form class="note" onSubmit=${save}><label>tags <input name="tags" key=${"t" + (notes.key || "")} defaultValue=${(there.tags || []).join(" ")} value=${(there.tags || []).join(" ")} /></label>
    <label>note <input name="note" value=${there.note || ""} /></label><button>save</button> <span role="status" class="soft">${saved}</span></form>`;
}

// ---- a group

function Group({ run, task, step }) {
  const rows = useAnswer("rows", { run, group: step === "" ? task : `${task}/${step}`, limit: 500, sort: "-reward" }).found;
  const [pair, setPair] = useState([]);
  if (!rows) return html`<main class="one"><p>…</p></main>`;
  const kept = rows.filter((row) => row.selection === "kept" || !row.selection);
  const mean = rows.reduce((sum, row) => sum + (row.reward ?? 0), 0) / (rows.length || 1);
  const pick = (row) => setPair((now) => now.includes(row.id) ? now.filter((n) => n !== row.id) : [...now, row.id].slice(-2));
  return html`<main class="one"><h1>${visible(task)}${step !== "" ? `, step ${step}` : ""}</h1>
    <p>${rows.length} rollouts, ${kept.length} kept; mean reward ${number(mean)}; expected <b>${visible(rows[0]?.expected ?? "–")}</b></p>
    <table class="plain"><thead><tr><th>diff</th><th>rollout</th><th>reward</th><th>answer</th><th>advantage</th><th>failed</th><th>errors</th><th>repair</th><th>turns</th><th>tokens</th><th>kept or dropped, and why</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id} class=${row.selection && row.selection !== "kept" ? "dropped" : ""}>
      <td><input type="checkbox" aria-label=${"compare " + row.name} checked=${pair.includes(row.id)} onChange=${() => pick(row)} /></td>
      <td><a href=${address("one", [run, row.id])}>${visible(row.name)}</a></td><td class=${"num " + row.verdict}>${number(row.reward)}</td><td>${visible(row.answer ?? "–")}</td><td class="num">${number(row.advantage)}</td>
      <td class="num">${row.failures}</td><td>${visible(row.errors)}</td><td>${row.repair}</td><td class="num">${row.turns}</td><td class="num">${number(row.tokens)}</td><td>${row.selection || "–"} <span class="soft">${WHY[row.selection] || ""}</span></td></tr>`)}</tbody></table>
    ${pair.length === 2 && html`<${Diff} run=${run} one=${pair[0]} other=${pair[1]} />`}
  </main>`;
}
function Diff({ run, one, other }) {
  const a = useAnswer("line", { run, id: one }).found, b = useAnswer("line", { run, id: other }).found;
  if (!a || !b) return null;
  const lines = (made) => made.turns.flatMap((turn, n) => [`— turn ${n + 1}`, ...textOf(turn).split("\n"), ...(turn.observations || []).flatMap((o) => o.text.split("\n").map((l) => "  > " + l))]).slice(0, 2000);
  return html`<section><h2>${visible(a.id)} → ${visible(b.id)}</h2><pre class="diff">${compare(lines(a), lines(b)).map(([sign, text]) => html`<span class=${"d" + (sign === "-" ? "minus" : sign === "+" ? "plus" : "")}>${sign} ${visible(text)}\n</span>`)}</pre></section>`;
}
// Longest common subsequence over lines.
function compare(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const found = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i++; j++; }
    else if (j >= b.length || (i < a.length && table[i + 1][j] >= table[i][j + 1])) found.push(["-", a[i++]]);
    else found.push(["+", b[j++]]);
  }
  return found;
}

// ---- runs

const AXES = { step: "step", total_tokens: "tokens", cpu_s: "CPU seconds", wall_s: "seconds" };
function Runs({ runs, query }) {
  const tick = useTick(5);
  const [metrics, setMetrics] = useState({});
  useEffect(() => { runs.forEach((run, n) => { if (run.metrics && (!run.finished || !metrics[n])) ask("metrics", { run: n }).then((lines) => setMetrics((now) => ({ ...now, [n]: lines }))); }); }, [tick, runs.length]);
  const names = [...new Set(Object.values(metrics).flatMap((lines) => Object.keys(lines[lines.length - 1] || {})))].filter((name) => !(name in AXES) || name === "total_tokens").sort();
  const chosen = (query.metrics || "reward,pass_rate,raw_failures").split(",").filter((name) => names.includes(name));
  const axis = query.axis || "step", smooth = +(query.smooth || 0);
  return html`<main class="one"><h1>runs</h1>
    <table class="plain"><thead><tr><th>run</th><th>rollouts</th><th>steps</th><th>state</th></tr></thead><tbody>${runs.map((run, n) => html`<tr><td><a href=${address("list", [], { run: runs.length > 1 ? n : "" })}>${visible(run.name)}</a></td>
      <td class="num">${run.rollouts.toLocaleString()}</td><td class="num">${metrics[n]?.length ?? "–"}</td><td>${run.indexing ? "indexing" : run.metrics ? run.finished ? "finished" : "not finished" : "files"} ${run.problems.map((p) => html`<span class="wrong">${visible(p)}</span>`)}</td></tr>`)}</tbody></table>
    ${names.length > 0 && html`<p class="tools"><label>add a metric <select value="" onChange=${(e) => amend({ metrics: [...chosen, e.target.value].join(",") })}><option value=""></option>${names.filter((name) => !chosen.includes(name)).map((name) => html`<option>${name}</option>`)}</select></label>
      <label>by <select value=${axis} onChange=${(e) => amend({ axis: e.target.value })}>${Object.entries(AXES).map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <label>smooth over <input type="number" min="0" max="500" value=${smooth} onChange=${(e) => amend({ smooth: e.target.value === "0" ? "" : e.target.value })} /> steps</label></p>`}
    ${chosen.map((name) => html`<${Curve} key=${name} name=${name} runs=${runs} metrics=${metrics} axis=${axis} smooth=${smooth} remove=${() => amend({ metrics: chosen.filter((one) => one !== name).join(",") })} />`)}
  </main>`;
}
const INKS = ["#1f77b4", "#d95f02", "#1b9e77", "#b5469c", "#8c6d31", "#7570b3"];
function Curve({ name, runs, metrics, axis, smooth, remove }) {
  const box = useRef();
  useEffect(() => {
    const shown = runs.map((run, n) => [run, n, metrics[n]]).filter(([, , lines]) => lines?.some((line) => line[name] != null));
    if (!shown.length) return undefined;
    const along = (lines) => { let sum = 0; return lines.map((line) => axis === "total_tokens" ? sum += line[axis] || 0 : line[axis]); };
    const tables = shown.map(([, , lines]) => [along(lines), smoothed(lines.map((line) => line[name] ?? null), smooth)]);
    const ink = getComputedStyle(document.body).color;
    const scale = { stroke: ink, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884" } };
    const plot = new uPlot({
      width: box.current.clientWidth, height: 220, scales: { x: { time: false } }, axes: [{ ...scale, label: AXES[axis] }, { ...scale, size: 60 }], cursor: { drag: { x: true } },
      series: [{ label: AXES[axis] }, ...shown.map(([run, n]) => ({ label: run.name, stroke: INKS[n % INKS.length], width: 1.6, spanGaps: true, points: { show: false } }))],
    }, tables.length === 1 ? tables[0] : uPlot.join(tables), box.current);
    plot.over.addEventListener("click", () => {
      const at = plot.cursor.idx, nearest = shown[0];
      if (at == null || plot.select.width > 0) return;
      const x = plot.data[0][at], near = shown.map(([, n, lines]) => [n, lines[along(lines).indexOf(x)]]).find(([, line]) => line) || [nearest[1], null];
      if (near[1]) go("list", [], { run: runs.length > 1 ? near[0] : "", step: near[1].step });
    });
    const resize = () => plot.setSize({ width: box.current.clientWidth, height: 220 });
    addEventListener("resize", resize);
    return () => { removeEventListener("resize", resize); plot.destroy(); };
  }, [name, metrics, axis, smooth, runs.length]);
  return html`<section class="curve"><h2>${name} <button aria-label=${"remove " + name} onClick=${remove}>×</button></h2><div ref=${box}></div></section>`;
}
function smoothed(values, window) {
  if (window < 2) return values;
  return values.map((value, n) => { const part = values.slice(Math.max(0, n - window + 1), n + 1).filter((v) => v != null); return value == null || !part.length ? null : part.reduce((a, b) => a + b) / part.length; });
}

// ---- the page

function App() {
  const { page, parts, query } = useRoute();
  const tick = useTick(5);
  const asked = useAnswer("runs", {}, tick);
  const runs = asked.found || [];
  useEffect(() => {
    const keyed = (event) => {
      if (event.target.matches?.("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) { if (event.key === "Escape") event.target.blur(); return; }
      if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
      if (event.key === "g") go("runs");
      if (event.key === "l") go("list");
      if (event.key === "Escape" && parse().page !== "list") history.back();
    };
    addEventListener("keydown", keyed);
    return () => removeEventListener("keydown", keyed);
  }, []);
  useEffect(() => { if (page === "list" && document.activeElement === document.body) document.querySelector(".rows")?.focus({ preventScroll: true }); }, [page, runs.length > 0]);
  const tab = (name, title) => html`<a href=${address(name)} aria-current=${page === name ? "page" : undefined}>${title}</a>`;
  return html`<header><b>retcon view</b><nav aria-label="pages">${tab("list", "rollouts (l)")}${tab("runs", "runs (g)")}</nav>
      <span class="soft names">${runs.map((run) => visible(run.name)).join(", ")}</span></header>
    ${asked.error && html`<p class="error" role="alert">The server does not answer (${asked.error}): is retcon view still running?</p>`}
    ${page === "one" ? html`<${One} run=${parts[0]} id=${parts[1]} find=${query.text || ""} key=${parts.join("/")} />`
      : page === "group" ? html`<${Group} run=${parts[0]} task=${parts[1]} step=${parts[2] ?? ""} />`
      : page === "runs" ? html`<${Runs} runs=${runs} query=${query} />`
      : html`<${List} query=${query} runs=${runs} />`}`;
}
render(html`<${App} />`, document.getElementById("app"));
})();
