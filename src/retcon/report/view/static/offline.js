"use strict";
// Answers the page's questions from the files of an exported view: scripts that hand their value to `retconData`.
(() => {
const given = new Map(), waiting = new Map();
window.retconData = (name, value) => { given.set(name, value); waiting.get(name)?.(value); };
function load(name) {
  return new Promise((resolve, reject) => {
    waiting.set(name, (value) => { waiting.delete(name); given.delete(name); resolve(value); });
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onerror = () => reject(new Error(`data/${name}.js is not there`));
    script.onload = () => script.remove();
    document.head.append(script);
  });
}
// A file of lines; few are held at a time, and one that is being read is not asked for again.
const held = new Map();
function chunk(run, n) {
  const name = `lines-${run}-${n}`;
  if (!held.has(name)) {
    for (const old of [...held.keys()].slice(0, -7)) if (!waiting.has(old)) held.delete(old);
    held.set(name, load(name));
  }
  return held.get(name);
}
const all = () => given.get("runs").runs;
const between = (text) => { const found = /^(\d+)(-?)(\d*)$/.exec(text || ""); return found && [+found[1], found[3] ? +found[3] : found[2] ? Infinity : +found[1]]; };
const within = (bounds, value) => !bounds || (value != null && value >= bounds[0] && value <= bounds[1]);
const words = (text) => (text.match(/[\p{L}\p{N}_]+/gu) || []).map((word) => word.toLowerCase());

function fits(about, tagged) {
  const step = between(about.step), tokens = between(about.tokens), tree = between(about.tree);
  const group = /^(.*)\/(\d+)$/.exec(about.group || "");
  return (row) => within(step, row.step) && within(tokens, row.tokens) && within(tree, row.tree)
    && (!about.task || row.task === about.task)
    && (!about.group || (group ? row.task === group[1] && row.step === +group[2] : row.task === about.group))
    && ["verdict", "stop", "selection", "parent"].every((name) => !about[name] || row[name] === about[name])
    && (!about.error || row.errors.split(" ").includes(about.error))
    && (!about.repair || (about.repair === "none" ? !row.repair : about.repair === "any" ? row.repair : row.repair.split(" ").includes(about.repair)))
    && (!("failed" in about) || row.failures > 0) && (!("dropped" in about) || !["", "kept"].includes(row.selection))
    && (!about.message || row.messages.includes(+about.message)) && (!tagged || tagged.has(row.name));
}
const searched = new Map();
function found(about) {
  const { sort: _, limit: __, offset: ___, ...filters } = about, key = JSON.stringify(filters);
  if (!searched.has(key)) {
    if (searched.size > 4) searched.clear();
    searched.set(key, find(about));
  }
  return searched.get(key);
}
async function find(about) {
  const rows = [];
  for (const [n, run] of all().entries()) {
    if (about.run && +about.run !== n) continue;
    const tagged = about.tag && new Set(Object.entries(run.notes).filter(([, note]) => note.tags?.includes(about.tag)).map(([id]) => id));
    const some = run.rows.filter(fits(about, tagged));
    rows.push(...about.text?.trim() ? await search(n, some, about.text, about.field) : some);
  }
  return rows;
}
// As the index searches: words that stand one after the other, the last one by its beginning.
async function search(run, rows, text, field) {
  const wanted = words(text);
  if (!wanted.length) return [];
  const pattern = new RegExp("(?<![\\p{L}\\p{N}_])" + wanted.join("[^\\p{L}\\p{N}_]+") + (/[\p{L}\p{N}_]$/u.test(text) ? "" : "(?![\\p{L}\\p{N}_])"), "iu");
  const hits = [];
  let lines = null, at = -1;
  for (const row of rows) {
    if (row.chunk !== at) { at = row.chunk; lines = await chunk(run, at); }
    const fields = Object.entries(lines.texts[row.id]).filter(([, value]) => pattern.test(value)).map(([name]) => name);
    if (field ? fields.includes(field) : fields.length) hits.push({ ...row, found: fields });
  }
  return hits;
}
function sorted(rows, sort = "id") {
  const name = sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1;
  const key = (row) => name === "id" ? row.step ?? 0 : row[name];
  const order = (a, b) => a === b ? 0 : a == null ? -1 : b == null ? 1 : a < b ? -1 : 1;
  return name === "id" && sign > 0 && all().length === 1 ? rows : [...rows].sort((a, b) => sign * order(key(a), key(b)));
}
function counted(rows) {
  const facets = { verdict: {}, stop: {}, repair: {}, selection: {}, errors: {} };
  for (const row of rows) for (const [name, values] of Object.entries(facets))
    for (const value of name === "errors" || name === "repair" ? row[name].split(" ").filter(Boolean) : [row[name]]) values[value] = (values[value] || 0) + 1;
  return { total: rows.length, facets, indexing: false };
}
async function line(about) {
  const row = answers.row(about);
  return JSON.parse((await chunk(about.run, row.chunk)).lines[row.id]);
}
const answers = {
  runs: () => given.get("runs").overview.map((run) => ({ ...run, indexing: false, finished: true })),
  rows: async (about) => sorted(await found(about), about.sort).slice(+(about.offset || 0), +(about.offset || 0) + +(about.limit || 100)),
  counts: async (about) => counted(await found(about)),
  steps: async (about) => {
    const steps = new Map();
    for (const row of await found(about)) if (row.step != null) steps.set(row.step, (steps.get(row.step) || 0) + 1);
    return [...steps].sort((a, b) => a[0] - b[0]);
  },
  row: (about) => {
    const rows = all()[about.run].rows, row = rows.find((one) => one.id === +about.id);
    if (row && (!about.name || row.name === about.name)) return row;
    const named = rows.findLast((one) => one.name === about.name);
    if (!named) throw new Error("there is no such rollout in this export");
    return named;
  },
  line,
  tokens: async (about) => {
    const pieces = all()[about.run].pieces, made = await line(about);
    return pieces && [...made.prompt, ...made.turns.flatMap((turn) => turn.segments)].map((s) => (s.ids || []).map((id) => pieces[id]));
  },
  message: async (about) => {
    const made = await line(about), turn = made.turns[about.turn], at = +about.attempt < 0 ? turn : turn.abandoned[about.attempt];
    const seen = at.observations[about.call], error = seen.error_type || seen.status;
    const text = seen.text.slice(-4000).trimEnd().split("\n").pop().trim().replace(/\d+/g, "0").slice(0, 160);
    return all()[about.run].failures.find((one) => one.error === error && one.text === text)?.id ?? null;
  },
  metrics: (about) => all()[about.run].metrics,
  notes: (about) => all()[about.run].notes,
  failures: (about) => all()[about.run].failures.filter((one) => `${one.error}: ${one.text}`.toLowerCase().includes((about.text || "").toLowerCase())),
  tasks: (about) => {
    const tasks = new Map(), add = (counts, value) => { counts[value] = (counts[value] || 0) + 1; };
    for (const row of all()[about.run].rows) {
      if (!tasks.has(row.task)) tasks.set(row.task, { task: row.task, rollouts: 0, judged: 0, right: 0, errors: {}, ends: {} });
      const task = tasks.get(row.task);
      task.rollouts++;
      task.judged += row.verdict !== "";
      task.right += row.verdict === "right";
      add(task.ends, row.stop);
      for (const error of row.errors.split(" ").filter(Boolean)) add(task.errors, error);
    }
    return [...tasks.values()];
  },
};
window.retconOffline = async (what, about) => answers[what](Object.fromEntries(Object.entries(about).filter(([, value]) => value !== "" && value != null)));
})();
