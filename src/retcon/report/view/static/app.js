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

// ---- the server, or the files of an exported view

const offline = window.retconOffline;
async function ask(what, about = {}) {
  if (offline) return offline(what, about);
  const kept = Object.entries(about).filter(([, value]) => value !== "" && value != null);
  const answer = await fetch(`api/${what}?${new URLSearchParams(kept)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}
async function post(what, about) {
  const answer = await fetch("api/" + what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(about) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}
// The answer to the newest question; an older one that comes late is dropped. Before the paint: it waits for no frame.
function useAnswer(what, about, again = 0) {
  const key = what + JSON.stringify(about);
  const [state, set] = useState({});
  useLayoutEffect(() => {
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
// Code gets its colours when it comes into sight: those of a long rollout are tens of thousands of elements.
const sight = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && entry.target.seen()));
function useSeen() {
  const box = useRef(), [seen, set] = useState(false);
  useLayoutEffect(() => {
    const at = box.current, end = () => sight.unobserve(at);
    at.seen = () => { end(); set(true); };
    sight.observe(at);
    return end;
  }, []);
  return [box, seen];
}
function Text({ text, code = false, find = "" }) {
  const [all, setAll] = useState(false), [box, seen] = useSeen();
  const cut = !all && text.length > SHOWN;
  const shown = visible(cut ? text.slice(0, SHOWN) : text);
  return html`<pre class=${code ? "code" : "text"} dir="auto" ref=${box}>${code && seen && shown.length <= SHOWN * 5 ? highlighted(shown, find) : marked(shown, find)}</pre>
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
  ["tokens", "tokens", "num"], ["seconds", "seconds", "num"], ["tree", "tree", "num"],
];
const SORTABLE = new Set(["name", "step", "reward", "failures", "turns", "tokens", "advantage", "seconds", "tree"]);
const fileOf = (row) => row.file === "." ? null : row.file;
const one = (row, query = {}) => address("one", [row.run, row.id], { ...query, name: row.name });
const ROW = 30, PAGE = 100;

// Rows by their places; those of the query before it until they come. The first page says how many there are if it is
// the only one, so that a search that finds little waits for no counts.
function usePages(query, counted, again) {
  const key = JSON.stringify(query) + again;
  const pages = useRef({ key: "", at: new Map() });
  const [, redraw] = useState(0);
  if (pages.current.key !== key) pages.current = { key, at: new Map(), old: pages.current.old || pages.current };
  const held = pages.current;
  const row = (index) => {
    const page = Math.floor(index / PAGE);
    if (!held.at.has(page)) {
      held.at.set(page, null);
      if (held.at.size > 60) held.at.delete(held.at.keys().next().value);
      ask("rows", { ...query, offset: page * PAGE, limit: PAGE }).then((rows) => {
        held.at.set(page, rows);
        held.old = null;
        if (pages.current === held) redraw((n) => n + 1);
      }, () => {});
    }
    return held.at.get(page)?.[index - page * PAGE] || held.old?.at.get(page)?.[index - page * PAGE];
  };
  row(0);
  const first = held.at.get(0)?.length ?? counted;
  return [row, first < PAGE ? first : Math.max(first, counted)];
}

function List({ query, runs }) {
  const tick = useTick(5);
  const running = runs.some((run) => !run.finished || run.indexing);
  const counted = useAnswer("counts", query, running ? tick : 0);
  const [row, total] = usePages(query, counted.found?.total ?? 0, running ? tick : 0);
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
  const open = (found) => { if (found) location.hash = one(found, { text: query.text }); };
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
        ${name === "question" && found.found?.length ? html`<em>in ${found.found.join(", ")}</em> ` : ""}${name === "name" ? html`<bdi dir="ltr">${visible(found.name)}</bdi>` : visible(number(found[name]))}</span>`)
        : html`<span role="gridcell" class="cell soft">…</span>`}
    </div>`);
  }
  const sort = query.sort || "id";
  return html`<main class="list">
    <${Filters} query=${query} counts=${counted.found} error=${counted.error} runs=${runs} />
    <section class="table">
      <p class="status" role="status">${counted.found ? html`<b>${total.toLocaleString()}</b> ${total === 1 ? "rollout" : "rollouts"}${counted.found.indexing ? ", still indexing" : ""}` : "…"}
        ${query.about && html` with a call that ended in <b>${visible(query.about)}</b>`}
        ${!offline && html` <label>export as <select value="" onChange=${(e) => { location.assign("api/export?" + new URLSearchParams({ ...query, format: e.target.value })); e.target.value = ""; }}><option value=""></option>${EXPORTS.map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>`}</p>
      ${Object.keys(query).some((name) => !["run", "sort", "step"].includes(name)) && runs.length > 0 && html`<${BySteps} query=${query} again=${total} />`}
      <div class="head" role="row" ref=${head}>${COLUMNS.map(([name, title, kind]) => SORTABLE.has(name)
        ? html`<button key=${name} class=${"cell " + kind} aria-label=${"sort by " + title} onClick=${() => amend({ sort: sort === "-" + name ? name : "-" + name })}>${title}${sort === name ? " ↑" : sort === "-" + name ? " ↓" : ""}</button>`
        : html`<span key=${name} class=${"cell " + kind}>${title}</span>`)}</div>
      <div class="rows" role="grid" aria-label="rollouts" aria-rowcount=${total + 1} aria-activedescendant=${"row" + chosen} tabindex="0" ref=${box} onScroll=${look} onKeyDown=${keyed}>
        <div class="space" style=${{ height: total * ROW + "px" }}>${shown}</div>
        ${counted.found && !total && (Object.keys(query).length || !runs.some((run) => run.problems.length) ? html`<p class="empty">No rollout fits these filters.</p>`
          : html`<div class="empty"><p>There is no trajectory here:</p>${runs.flatMap((run) => run.problems.map((problem) => html`<p class="wrong">${visible(run.name)}: ${visible(problem)}</p>`))}
            <p>Of transcripts, <code>retcon purify</code> writes trajectories beside its output, into <code>NAME.audit.jsonl</code>: those with a failed call, raw beside purified.</p></div>`)}
      </div>
    </section>
  </main>`;
}

const EXPORTS = [["jsonl", "JSON Lines"], ["parquet", "Parquet"], ["eval", "Inspect log (.eval)"], ["pairs", "pairs for retcon dpo"], ["demonstrations", "demonstrations for retcon sft (the right ones)"]];
// How many rollouts of each step fit: a failure that was repaired and comes back is seen here.
function BySteps({ query, again }) {
  const { step, ...others } = query;
  const found = useAnswer("steps", { ...others, run: query.run || "0" }, again).found;
  if (!found || found.length < 2) return null;
  return html`<${Bars} steps=${found} label="rollouts by step" go=${(first, last) => amend({ step: first === last ? first : `${first}-${last}` })} />`;
}
function Bars({ steps, label, go: open, small = false }) {
  const first = steps[0][0], last = steps[steps.length - 1][0], wide = Math.max(1, Math.ceil((last - first + 1) / (small ? 40 : 100)));
  const bins = Array.from({ length: Math.floor((last - first) / wide) + 1 }, () => [0, 0]);
  steps.forEach(([step, count, repaired]) => { const bin = bins[Math.floor((step - first) / wide)]; bin[0] += count; bin[1] += repaired || 0; });
  const most = Math.max(...bins.map(([count]) => count));
  const title = (n) => { const from = first + n * wide, to = Math.min(last, from + wide - 1); return `${from === to ? "step " + from : `steps ${from} to ${to}`}: ${bins[n][0]}${bins[n][1] ? `, ${bins[n][1]} repaired` : ""}`; };
  return html`<div class=${"bars" + (small ? " small" : "")} role="img" aria-label=${`${label}, steps ${first} to ${last}, at most ${most}`}>${bins.map(([count, repaired], n) => html`<span key=${n} title=${title(n)}
    onClick=${open && (() => open(first + n * wide, Math.min(last, first + (n + 1) * wide - 1)))}><i style=${{ height: Math.round(100 * (count - repaired) / most) + "%" }}></i><i class="repaired" style=${{ height: Math.round(100 * repaired / most) + "%" }}></i></span>`)}</div>
    ${!small && html`<p class="scale soft"><span>step ${first}</span><span>${last}</span></p>`}`;
}

const FACETS = [["verdict", "judged"], ["errors", "error"], ["repair", "repair"], ["selection", "selection"], ["stop", "ended by"]];
function Filters({ query, counts, error, runs }) {
  const [text, setText] = useState(query.text || "");
  const typed = useRef(), sent = useRef(query.text || "");
  // What was typed since the last search stays: only a text from elsewhere, such as the history, replaces it.
  useEffect(() => { if ((query.text || "") !== sent.current) setText(sent.current = query.text || ""); }, [query.text]);
  const search = (value) => {
    setText(value);
    clearTimeout(typed.current);
    typed.current = setTimeout(() => amend({ text: sent.current = value }), 40);
  };
  const field = (name, label, more = {}) => html`<label>${label}<input value=${query[name] || ""} onChange=${(e) => amend({ [name]: e.target.value.trim() })} ...${more} /></label>`;
  return html`<form class="filters" onSubmit=${(e) => e.preventDefault()} aria-label="filters">
    <div class="search"><input type="search" id="search" placeholder="search ( / )" aria-label="search" value=${text} onInput=${(e) => search(e.target.value)} />
      <select aria-label="field to search" value=${query.field || ""} onChange=${(e) => amend({ field: e.target.value })}>
        ${[["", "anywhere"], ["question", "question"], ["words", "model's words"], ["code", "code"], ["output", "output"]].map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <details open=${innerWidth > 700}><summary>filters${Object.keys(query).length ? ` (${Object.keys(query).length})` : ""}</summary>
    ${runs.length > 1 && html`<label>run<select value=${query.run || ""} onChange=${(e) => amend({ run: e.target.value })}>
      <option value="">all</option>${runs.map((run, n) => html`<option value=${String(n)}>${run.name}</option>`)}</select></label>`}
    <div class="pair">${field("step", "step", { placeholder: "30 or 30-39" })}${field("task", "task")}${field("group", "group", { placeholder: "task/step" })}${field("tag", "tag")}
      ${field("tokens", "tokens", { placeholder: "0-4000" })}${field("tree", "tree size", { placeholder: "2-" })}</div>
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

function One({ run, id: given, name, find, runs }) {
  const [changed, setChanged] = useState(0);
  const [mode, setMode] = useState("text");
  const about = { run, id: given, name };
  const row = useAnswer("row", about, changed).found;
  const line = useAnswer("line", about, changed);
  const tokens = useAnswer(mode === "tokens" && "tokens", about, changed);
  const made = line.found, id = row?.id;
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
  if (!made || !row || line.key !== "line" + JSON.stringify(about)) return html`<main class="one"><p>…</p></main>`;
  const training = made.training || {}, step = made.provenance?.step;
  const facts = [
    ["reward", html`<b class=${made.reward > 0 ? "right" : made.reward == null ? "" : "wrong"}>${number(made.reward)}</b>`], ["judged", made.reason], ["answer", made.answer],
    ["expected", made.expected], ["ended by", made.stop ?? "answer"], ["selection", made.selection && html`${made.selection} <span class="soft">${WHY[made.selection] || ""}</span>`],
    ["advantage", training.advantage == null ? null : number(training.advantage)], ["staleness", training.staleness], ["seconds", training.seconds], ["step", step],
    ["branched off", made.branch && `${made.branch.parent}, after turn ${made.branch.turns}`], ["weights", made.provenance?.model], ["file", fileOf(row)],
  ].filter(([, value]) => value != null && value !== "");
  return html`<main class="one">
    <h1>${visible(made.id)}</h1>
    <p class="tools"><a href=${address("group", [run, made.task, step ?? ""])}>its group (u)</a>
      ${[["text", "text (x)"], ["tokens", "tokens (t)"], ["raw", "raw JSON (r)"]].map(([name, title]) => html`<button aria-pressed=${mode === name} onClick=${() => setMode(name)}>${title}</button>`)}</p>
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd dir="auto">${typeof value === "string" ? visible(value).slice(0, 2000) : value}</dd></div>`)}</dl>
    <${Tree} run=${run} row=${row} made=${made} />
    ${!offline && html`<${Note} run=${run} id=${made.id} /><${Change} run=${run} id=${id} done=${() => setChanged((n) => n + 1)} />`}
    ${mode === "raw" ? html`<${Text} text=${JSON.stringify(made, null, 1).replace(/\[[-\d.,\seE]+\]/g, (numbers) => numbers.replace(/\s+/g, " "))} code find=${find} />`
      : mode === "tokens" ? tokens.found === undefined && !tokens.error ? html`<p>…</p>` : html`<${Tokens} made=${made} pieces=${tokens.found} />`
      : html`<details open><summary>prompt</summary><${Text} text=${made.prompt.map((s) => s.text).join("")} find=${find} /></details>
        ${made.turns.map((turn, n) => html`<${Turn} turn=${turn} number=${n + 1} run=${run} id=${id} find=${find} checkpoint=${runs[run]?.checkpoint} />`)}`}
  </main>`;
}
const WHY = {
  kept: "trained on", penalty: "right, with a higher penalty than every right one that was kept", drawn: "right, and not drawn", wrong: "wrong, and not drawn",
  flat: "its group's rewards are equal", few: "fewer than two of its group could be compared", masked: "out of the loss by rl.void_turns or rl.truncated",
  infrastructure: "lost to a fault", selection: "by the selection",
};

// The rollouts that this one is a part of, or that are parts of it.
function Tree({ run, row, made }) {
  const children = useAnswer("rows", { run, parent: made.id, limit: 500 }).found || [];
  const parent = useAnswer(row.parent && "row", { run, name: row.parent }).found;
  if (!row.parent && !children.length) return null;
  return html`<details class="tree" open><summary>its tree: ${row.tree} rollouts</summary>
    ${row.parent && html`<p>${row.relation} of ${parent ? html`<a href=${one({ run, ...parent })}>${visible(parent.name)}</a>` : visible(row.parent)}${made.parent?.turn >= 0 ? html`, turn ${made.parent.turn + 1}${made.parent.call && html`, call <code>${visible(made.parent.call)}</code>`}` : ""}</p>`}
    <ul>${children.map((child) => html`<li key=${child.id}>${child.relation}: <a href=${one({ run, ...child })}>${visible(child.name)}</a> <span class="soft">${child.turns} turns, ${number(child.tokens)} tokens${child.reward == null ? "" : `, reward ${number(child.reward)}`}${child.errors && `, ${visible(child.errors)}`}</span> ${visible(child.answer ?? "")}</li>`)}</ul></details>`;
}

function Change({ run, id, done }) {
  const [state, set] = useState("");
  const change = async (about) => {
    try {
      const found = await post("change", { run, id, ...about });
      if (about.text === undefined) return history.length > 1 ? history.back() : go("list");
      set(`replaced ${found.count} times`);
      done();
    } catch (error) { set(error.message); }
  };
  const redact = () => { const text = prompt("Text to replace by [redacted] wherever it stands in this rollout, in its file as well:"); if (text) change({ text }); };
  const remove = () => { if (confirm("Delete this rollout from its file?")) change({}); };
  return html`<p class="tools"><button onClick=${redact}>redact a text…</button> <button onClick=${remove}>delete…</button> <span role="status" class="soft">${state}</span></p>`;
}

function Replay({ run, id, at, code }) {
  const [open, setOpen] = useState(false), [state, set] = useState({});
  const run_again = async (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("code");
    set({ busy: true });
    try { set({ found: await post("replay", { run, id, ...at, ...(text === code ? {} : { code: text }) }) }); } catch (error) { set({ error: error.message }); }
  };
  if (!open) return html` <button class="link" onClick=${() => setOpen(true)}>replay</button>`;
  return html`<form class="replay" onSubmit=${run_again}><label>program<textarea name="code" rows=${Math.min(16, code.split("\n").length + 1)} defaultValue=${code}></textarea></label>
    <button disabled=${state.busy}>run in the sandbox</button> <button type="button" onClick=${() => setOpen(false)}>close</button>
    <div role="status">${state.busy ? "running…" : state.error ? html`<p class="error">${state.error}</p>` : state.found ? html`<p class="seen"><b>${state.found.status}${state.found.error_type ? ": " + visible(state.found.error_type) : ""}</b> <span class="soft">${number(state.found.seconds)} s, now</span></p><${Text} text=${state.found.text} />` : ""}</div></form>`;
}

const WAYS = { fresh: "a fresh try from the history before it", raw: "after the failed call", fixed: "after what was put in its place" };
function Counterfactuals({ run, id, turn }) {
  const [state, set] = useState({});
  const roll = async () => {
    set({ busy: true });
    try { set({ found: await post("counterfactuals", { run, id, turn, times: 4 }) }); } catch (error) { set({ error: error.message }); }
  };
  if (state.found) return html`<div class="counterfactuals"><h3>what else could have happened, from ${state.found.checkpoint}</h3><table class="plain"><thead><tr><th>goes on</th><th>rollouts</th><th>right</th></tr></thead><tbody>
    ${Object.entries(state.found.ways).map(([way, about]) => html`<tr><td>${WAYS[way] || way}<details><summary>how they went on</summary>${about.ends.map((end) => html`<h4>reward ${number(end.reward)}</h4><${Text} text=${end.text} />`)}</details></td><td class="num">${about.made}</td><td class="num">${about.passed}</td></tr>`)}</tbody></table></div>`;
  return html`<p><button onClick=${roll} disabled=${state.busy}>what else could have happened?</button> <span role="status" class=${state.error ? "error" : "soft"}>${state.busy ? "rolling out from a checkpoint: this takes a while" : state.error || ""}</span></p>`;
}

function Turn({ turn, number: n, run, id, find, checkpoint }) {
  const repair = turn.repair, replaced = repair && ["shallow", "deep", "resampled", "described"].includes(repair.decision);
  return html`<section class="turn" aria-label=${"turn " + n}>
    <h2>turn ${n}${repair ? html` <span class=${"badge " + (replaced ? "repaired" : "")}>${repair.decision}</span> <span class="soft">${[visible(repair.reason || ""), repair.similarity != null && `similarity ${number(repair.similarity)}`, `${repair.attempts} ${repair.attempts === 1 ? "attempt" : "attempts"}`].filter(Boolean).join(", ")}</span>` : ""}</h2>
    ${repair && turn.abandoned?.length ? html`<div class="sides"><div class="side"><h3>raw: as it was sampled</h3>${(replaced ? [] : [turn]).concat(turn.abandoned).map((attempt, k) => html`<h4>${k === 0 ? "the failure" : "attempt " + k}</h4><${Attempt} turn=${attempt} run=${run} id=${id} find=${find} at=${{ turn: n - 1, attempt: replaced ? k : k - 1 }} />`)}</div>
      <div class="side"><h3>purified: what is learnt from</h3><${Attempt} turn=${turn} run=${run} id=${id} find=${find} spliced=${replaced} at=${{ turn: n - 1, attempt: -1 }} /></div></div>`
      : html`<${Attempt} turn=${turn} run=${run} id=${id} find=${find} at=${{ turn: n - 1, attempt: -1 }} />`}
    ${checkpoint && !offline && (replaced || turn.observations?.some(failed)) && html`<${Counterfactuals} run=${run} id=${id} turn=${n - 1} />`}
  </section>`;
}
const failed = (seen) => !["ok", "infrastructure"].includes(seen.status ?? "ok");
const lastLine = (text) => text.trimEnd().split("\n").pop().trim();
async function comesBack(run, id, at, seen) {
  const message = await ask("message", { run, id, ...at });
  const about = `${seen.error_type || seen.status}: ${lastLine(seen.text).slice(0, 160)}`;
  go("list", [], message == null ? { run, error: seen.error_type || seen.status } : { run, message, about, sort: "step" });
}
function Attempt({ turn, run, id, find, at, spliced = false }) {
  const text = textOf(turn), first = turn.calls?.[0]?.char ?? text.length;
  const marks = spliced && written(turn).some((s) => s.kind === "spliced");
  return html`<div class=${"attempt" + (marks ? " spliced" : "")}>
    ${marks && html`<p class="splice">${written(turn).map((s) => `${s.ids?.length ?? s.text.length} ${s.ids ? "tokens" : "characters"} ${s.kind}`).join(" | ")}</p>`}
    ${text.slice(0, first).trim() && html`<${Text} text=${text.slice(0, first).trim()} find=${find} />`}
    ${(turn.calls || []).map((call, n) => {
      const seen = turn.observations?.[n];
      const error = seen && failed(seen);
      return html`<div class=${"call" + (error ? " failed" : "")}><${Text} text=${codeOf(call)} code find=${find} />
        ${seen && html`<p class="seen"><span class=${error ? "wrong" : "right"}>${seen.status}${seen.error_type ? ": " + visible(seen.error_type) : ""}</span> <span class="soft">${number(seen.seconds ?? 0)} s</span>
          ${error && html` <button class="link" onClick=${() => comesBack(run, id, { ...at, call: n }, seen)}>does it come back?</button>`}${!offline && html`<${Replay} run=${run} id=${id} at=${{ ...at, call: n }} code=${codeOf(call)} />`}</p>
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
    <${Unlikely} all=${all} />
    <pre class="stream" onMouseOver=${over} onFocusIn=${over}>${all.slice(0, most).map((one, n) => html`<span tabindex=${n === 0 ? 0 : -1} data-n=${n} key=${n} class=${"token " + COLOURS[colour](one)}>${one.text === undefined ? one.id + " " : visible(one.text)}</span>`)}</pre>
    ${all.length > most && html`<button class="more" onClick=${() => setMost(most * 10)}>show more of ${all.length.toLocaleString()} tokens</button>`}</div>`;
}

// The tokens of a splice that the model would not have written itself after the purified history.
function Unlikely({ all }) {
  const found = all.filter((t) => t.kind === "spliced" && t.logprob != null).sort((a, b) => a.logprob - b.logprob).slice(0, 8);
  if (!found.length) return null;
  return html`<details class="unlikely"><summary>the least likely tokens of the splice, under the purified prefix</summary><table class="plain"><thead><tr><th>token</th><th>id</th><th>p, purified prefix</th><th>p, as it was sampled</th></tr></thead><tbody>
    ${found.map((t) => html`<tr><td><code>${visible(JSON.stringify(t.text ?? t.id))}</code></td><td class="num">${t.id}</td><td class="num">${number(Math.exp(t.logprob), 4)}</td><td class="num">${t.before == null ? "–" : number(Math.exp(t.before), 4)}</td></tr>`)}</tbody></table></details>`;
}

function Note({ run, id }) {
  const notes = useAnswer("notes", { run });
  const there = notes.found?.[id] || {};
  const [saved, setSaved] = useState("");
  const save = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target), tags = form.get("tags").split(/[\s,]+/).filter(Boolean);
    await post("note", { run, id, tags, note: form.get("note") }).then(() => setSaved("saved"), (error) => setSaved("not saved: " + error.message));
  };
  return html`<form class="note" onSubmit=${save}><label>tags <input name="tags" key=${"t" + (notes.key || "")} defaultValue=${(there.tags || []).join(" ")} value=${(there.tags || []).join(" ")} /></label>
    <label>note <input name="note" value=${there.note || ""} /></label><button>save</button> <span role="status" class="soft">${saved}</span></form>`;
}

// ---- a group

// Siblings of a prompt at a step; without a run, all rollouts of a problem in all runs.
function Group({ run, task, step, runs }) {
  const rows = useAnswer("rows", { run, ...(step === "" ? { task } : { group: `${task}/${step}` }), limit: 500, sort: "-reward" }).found;
  const [pair, setPair] = useState([]);
  if (!rows) return html`<main class="one"><p>…</p></main>`;
  const kept = rows.filter((row) => row.selection === "kept").length;
  const mean = (some) => { const judged = some.filter((row) => row.reward != null); return judged.length ? number(judged.reduce((sum, row) => sum + row.reward, 0) / judged.length) : "–"; };
  const key = (row) => `${row.run}/${row.id}`;
  const pick = (row) => setPair((now) => now.some((other) => key(other) === key(row)) ? now.filter((other) => key(other) !== key(row)) : [...now, row].slice(-2));
  const several = run === "" && runs.length > 1, files = new Set(rows.map((row) => row.file)).size > 1;
  return html`<main class="one"><h1>${visible(task)}${step !== "" ? `, step ${step}` : ""}</h1>
    <p>${rows.length} ${rows.length === 1 ? "rollout" : "rollouts"}${rows.some((row) => row.selection) ? `, ${kept} kept` : ""}; mean reward ${several ? runs.map((about, n) => `${about.name}: ${mean(rows.filter((row) => row.run === n))}`).join(", ") : mean(rows)}; expected <b>${visible(rows[0]?.expected ?? "–")}</b></p>
    <table class="plain"><thead><tr><th>diff</th>${several && html`<th>run</th>`}<th>rollout</th>${files && html`<th>file</th>`}<th>reward</th><th>answer</th><th>kept or dropped, and why</th><th>advantage</th><th>failed</th><th>errors</th><th>repair</th><th>turns</th><th>tokens</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${key(row)} class=${row.selection && row.selection !== "kept" ? "dropped" : ""}>
      <td><input type="checkbox" aria-label=${"compare " + row.name} checked=${pair.some((other) => key(other) === key(row))} onChange=${() => pick(row)} /></td>${several && html`<td>${visible(runs[row.run]?.name ?? "")}</td>`}
      <td><a href=${one(row)}>${visible(row.name)}</a></td>${files && html`<td>${visible(row.file.replace(/^trajectories\/|\.jsonl.*/g, ""))}</td>`}<td class=${"num " + row.verdict}>${number(row.reward)}</td><td>${visible(row.answer ?? "–")}</td><td class="message">${row.selection || "–"} <span class="soft">${WHY[row.selection] || ""}</span></td><td class="num">${number(row.advantage)}</td>
      <td class="num">${row.failures}</td><td>${visible(row.errors)}</td><td>${row.repair}</td><td class="num">${row.turns}</td><td class="num">${number(row.tokens)}</td></tr>`)}</tbody></table>
    ${pair.length === 2 && html`<${Diff} one=${pair[0]} other=${pair[1]} runs=${runs} />`}
  </main>`;
}
function Diff({ one: first, other, runs }) {
  const a = useAnswer("line", { run: first.run, id: first.id }).found, b = useAnswer("line", { run: other.run, id: other.id }).found;
  if (!a || !b) return null;
  const lines = (made) => made.turns.flatMap((turn, n) => [`— turn ${n + 1}`, ...textOf(turn).split("\n"), ...(turn.observations || []).flatMap((o) => o.text.split("\n").map((l) => "  > " + l))]).slice(0, 2000);
  return html`<section><h2>${[first, other].map((row, n) => html`${n ? " → " : ""}${first.run === other.run ? "" : visible(runs[row.run]?.name ?? "") + ": "}${visible((n ? b : a).id)}`)}</h2><pre class="diff">${compare(lines(a), lines(b)).map(([sign, text]) => html`<span class=${"d" + (sign === "-" ? "minus" : sign === "+" ? "plus" : "")}>${sign} ${visible(text)}</span>`)}</pre></section>`;
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

// ---- failures: which messages there are, and whether they come back after they were repaired

const chosenRun = (runs, query) => query.run && query.run < runs.length ? +query.run : 0;
const RunChoice = ({ runs, query }) => runs.length > 1 && html`<label>run <select value=${String(chosenRun(runs, query))} onChange=${(e) => amend({ run: e.target.value })}>${runs.map((run, n) => html`<option value=${String(n)}>${run.name}</option>`)}</select></label>`;
const FAILURE_SORTS = { count: "failures", repaired: "repaired", later: "after the first repair" };
function Failures({ runs, query }) {
  const run = chosenRun(runs, query), asked = useAnswer("failures", { run, text: query.text });
  const [text, setText] = useState(query.text || "");
  const sort = query.sort || "count", rows = [...(asked.found || [])].sort((a, b) => (b[sort] ?? -1) - (a[sort] ?? -1));
  const open = (row) => address("list", [], { run: runs.length > 1 ? run : "", message: row.id, about: `${row.error}: ${row.text}`.slice(0, 160), sort: "step" });
  return html`<main class="one"><h1>failures</h1><p>Failed calls by their error and the last line of their output; digits count as equal.</p>
    <p class="tools"><${RunChoice} runs=${runs} query=${query} /><label>with <input type="search" id="search" aria-label="text of the message" value=${text} onInput=${(e) => { setText(e.target.value); amend({ text: e.target.value }); }} /></label>
      sort by ${Object.entries(FAILURE_SORTS).map(([name, title]) => html`<button aria-pressed=${sort === name} onClick=${() => amend({ sort: name })}>${title}</button>`)}</p>
    ${asked.error && html`<p class="error">${asked.error}</p>`}
    <table class="plain"><thead><tr><th>failure</th><th>calls</th><th>repaired</th><th>after the first repair</th><th>steps</th><th>by step</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.id}>
      <td class="message"><a href=${open(row)}>${visible(row.error)}</a> ${visible(row.text.startsWith(row.error) ? row.text.slice(row.error.length + 1) : row.text)}</td><td class="num">${number(row.count)}</td><td class="num">${number(row.repaired)}</td>
      <td class="num">${row.later == null ? html`<span class="soft">never repaired</span>` : number(row.later)}</td><td class="num">${row.first == null ? "–" : row.first === row.last ? row.first : `${row.first}–${row.last}`}</td><td>${row.last > row.first && html`<${Bars} steps=${row.steps} label="failures by step" small />`}</td></tr>`)}</tbody></table>
    ${asked.found && !rows.length && html`<p class="empty">No call failed${query.text ? " so" : ""}.</p>`}</main>`;
}

// ---- problems: how often each is solved, in each run, and how it fails

function Problems({ runs, query }) {
  const [tables, setTables] = useState([]);
  useEffect(() => { Promise.all(runs.map((_, n) => ask("tasks", { run: n }))).then(setTables, () => {}); }, [runs.map((run) => run.rollouts).join()]);
  const tasks = useMemo(() => {
    const found = new Map();
    tables.forEach((rows, n) => rows.forEach((row) => { if (!found.has(row.task)) found.set(row.task, []); found.get(row.task)[n] = row; }));
    return [...found];
  }, [tables]);
  const rate = (row) => row?.judged ? row.right / row.judged : null;
  const spread = (rows) => { const rates = [...rows].map(rate).filter((r) => r != null); return Math.max(...rates) - Math.min(...rates); };
  const least = (rows) => Math.min(...[...rows].map((row) => rate(row) ?? 1));
  const sort = query.sort || (runs.length > 1 ? "difference" : "least"), most = +(query.most || 200);
  const wanted = tasks.filter(([task, rows]) => (!query.text || task.includes(query.text)) && (!("never" in query) || [...rows].every((row) => !row?.right)));
  wanted.sort(([, a], [, b]) => sort === "difference" ? spread(b) - spread(a) : least(a) - least(b));
  return html`<main class="one"><h1>problems</h1>
    <p class="tools"><label>with <input type="search" id="search" aria-label="text of the problem's id" value=${query.text || ""} onInput=${(e) => amend({ text: e.target.value })} /></label>
      <label><input type="checkbox" checked=${"never" in query} onChange=${(e) => amend({ never: e.target.checked ? "1" : "" })} /> never right</label>
      sort by ${[["least", "least solved"], ["difference", "difference of runs"]].map(([name, title]) => html`<button aria-pressed=${sort === name} onClick=${() => amend({ sort: name })}>${title}</button>`)}
      <span role="status">${wanted.length.toLocaleString()} of ${tasks.length.toLocaleString()}</span></p>
    <table class="plain"><thead><tr><th>problem</th>${runs.map((run) => html`<th>right${runs.length > 1 ? ": " + run.name : ""}</th>`)}<th>errors</th><th>ended by</th></tr></thead><tbody>${wanted.slice(0, most).map(([task, rows]) => html`<tr key=${task}>
      <td><a href=${address("group", [runs.length > 1 ? "" : 0, task, ""])}>${visible(task)}</a></td>${runs.map((_, n) => html`<td class=${"num " + (rate(rows[n]) === 0 ? "wrong" : "")}>${!rows[n] ? "–" : rows[n].judged ? `${rows[n].right} of ${rows[n].judged}` : `${rows[n].rollouts} not judged`}</td>`)}
      <td>${summed(rows, "errors")}</td><td>${summed(rows, "ends")}</td></tr>`)}</tbody></table>
    ${wanted.length > most && html`<button class="more" onClick=${() => amend({ most: most * 5 })}>show more</button>`}</main>`;
}
function summed(rows, name) {
  const found = {};
  for (const row of rows) for (const [value, count] of Object.entries(row?.[name] || {})) found[value] = (found[value] || 0) + count;
  return Object.entries(found).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([value, count]) => `${visible(value)} ${count}`).join(", ");
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
const INCREMENTS = [...Array(11)].flatMap((_, n) => [1, 2, 5].map((k) => k * 10 ** n));
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
      width: box.current.clientWidth, height: 220, scales: { x: { time: false } }, axes: [{ ...scale, label: AXES[axis], incrs: INCREMENTS }, { ...scale, size: 60 }], cursor: { drag: { x: true } },
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
      const page = { g: "runs", f: "failures", p: "problems" }[event.key];
      if (page) go(page);
      if (event.key === "l") go("list");
      if (event.key === "Escape" && parse().page !== "list") history.back();
    };
    addEventListener("keydown", keyed);
    return () => removeEventListener("keydown", keyed);
  }, []);
  useEffect(() => { if (page === "list" && document.activeElement === document.body) document.querySelector(".rows")?.focus({ preventScroll: true }); }, [page, runs.length > 0]);
  const tab = (name, title) => html`<a href=${address(name)} aria-current=${page === name ? "page" : undefined}>${title}</a>`;
  return html`<header><b>retcon view</b><nav aria-label="pages">${tab("list", "rollouts (l)")}${tab("failures", "failures (f)")}${tab("problems", "problems (p)")}${tab("runs", "runs (g)")}</nav>
      <span class="soft names">${runs.map((run) => visible(run.name)).join(", ")}</span></header>
    ${asked.error && html`<p class="error" role="alert">The server does not answer (${asked.error}): is retcon view still running?</p>`}
    ${page === "one" ? html`<${One} run=${parts[0]} id=${parts[1]} name=${query.name || ""} find=${query.text || ""} runs=${runs} key=${parts.join("/")} />`
      : page === "group" ? html`<${Group} run=${parts[0]} task=${parts[1]} step=${parts[2] ?? ""} runs=${runs} />`
      : page === "failures" && runs.length ? html`<${Failures} runs=${runs} query=${query} />`
      : page === "problems" && runs.length ? html`<${Problems} runs=${runs} query=${query} />`
      : page === "runs" ? html`<${Runs} runs=${runs} query=${query} />`
      : html`<${List} query=${query} runs=${runs} />`}`;
}
render(html`<${App} />`, document.getElementById("app"));
})();
