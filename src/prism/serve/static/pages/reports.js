// Reports: what investigate, compare, predict, goodput and place printed.
import * as address from "../address.js";
import { COLOURS, SERIES, chart, colour } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, clock, cost, number, percent, seconds, whole, words } from "../units.js";

const COMMANDS = { investigation: "prism investigate job-17/ --json > out/job-17.json", comparison: "prism compare before.parquet after.parquet --json > out/compare.json", prediction: "prism predict events.parquet --at 2026-10-01 --json > out/risks.json", goodput: "prism goodput runs/* --json > out/goodput.json", advice: "prism predict advise events.csv --at 2026-10-01 --json > out/advice.json", placement: "prism place simulate jobs.csv --clusters clusters.yaml --json > out/place.json" };

export async function reports({ go }) {
  const node = h("div", {});
  const draw = async () => {
    const { reports: rows, left_out } = await load("reports");
    const head = h("div", { class: "head" }, h("h1", {}, "Reports"), h("span", { class: "sub" }, "investigations, comparisons, predictions, goodput, placements"));
    if (!rows.length) { clear(node, head, card("Reports", h("div", {}, empty("No report is here", "Keep what these commands print below this folder, under any name that ends in .json."), h("ul", { class: "notes" }, Object.values(COMMANDS).map((command) => h("li", {}, h("code", {}, command))))))); return; }
    const path = address.get("path") || rows[0].path;
    const built = table("reports", [
      { name: "kind", get: (r) => r.kind, show: (r) => badge(r.kind, "info") }, { name: "file", get: (r) => r.path, cut: true, show: (r) => h("a", { href: address.link("/reports", { path: r.path }) }, r.path) }, { name: "says", wide: true, get: (r) => r.line },
      { name: "printed", num: true, get: (r) => Number(r.updated_ns), show: (r) => ago(r.updated_ns) },
    ], rows, { caption: "Reports", most: 12, chosen: (r) => r.path === path, go: (r) => (event) => { if (!event.target.closest("a")) go("/reports", { path: r.path }); } });
    let detail;
    try { detail = show(await load("printed", { path })); } catch (error) { if (error.status !== 404) throw error; detail = card(path, empty("This report is gone", error.message)); }
    clear(node, head, card("All reports", built.node, { tools: built.tools, about: left_out ? `${whole(left_out)} older ones are left out` : "newest first" }), detail);
  };
  await draw();
  return { node, refresh: draw };
}

const SHOW = { investigation, comparison, prediction, advice, replay, goodput, placement, "placement-choice": choice };
const links = (report) => h("span", { class: "chips" }, report.has_page ? h("a", { class: "button", href: address.link("/api/report", { key: report.path }), "data-outside": "yes" }, "Its own page") : null,
  h("a", { class: "button", href: address.link("/api/printed", { path: report.path }), "data-outside": "yes" }, "JSON"));
const show = ({ report, document, risks_left_out }) => h("div", {}, h("div", { class: "head" }, badge(report.kind, "info"), h("b", {}, report.path), h("span", { class: "grow" }), links(report)), SHOW[report.kind](document, risks_left_out, report), document.notes?.length ? card("Notes", h("ul", { class: "notes" }, document.notes.map((note) => h("li", {}, String(note))))) : null);

const who = (suspect) => (typeof suspect === "object" && suspect ? `${suspect.type ?? ""} ${suspect.id ?? ""}`.trim() : String(suspect));

function investigation({ verdict, evidence, profile }, _, report) {
  const facts = [["who", (verdict.culprits || []).map(who).join(", ") || "nobody can be named"], ["or", (verdict.alternatives || []).map(who).join(", ")], ["since", verdict.since_ns ? clock(verdict.since_ns, { date: true }) : "not known"], ["sure", percent(verdict.confidence)], ["against it", (verdict.against || []).join("; ")], ["next", verdict.next]];
  const built = table("evidence", [{ name: "source", get: (c) => c.source }, { name: "sure", num: true, get: (c) => c.confidence, show: (c) => (c.confidence === undefined ? "–" : percent(c.confidence)) }, { name: "what it says", wide: true, get: (c) => c.text }], evidence, { caption: "Evidence" });
  return [card(verdict.what || report.path, h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), { about: report.path }), card("Evidence", built.node, { tools: built.tools }), ...profileCards(profile)];
}

// Tables of what profiler traces showed; their columns are as the command names them.
function profileCards(profile) {
  return ["breakdown", "lateness", "slow_kernels", "bubbles", "bandwidth"].map((name) => {
    const rows = profile?.[name] || [];
    if (!rows.length) return null;
    const built = table(name, Object.keys(rows[0]).map((key) => { const num = typeof rows[0][key] === "number"; return { name: words(key), num, cut: !num, get: (row) => row[key], show: num ? (row) => number(row[key]) : undefined }; }), rows, { caption: words(name), most: 20 });
    return card(words(name), built.node, { tools: built.tools });
  });
}

function comparison(d, _, report) {
  const longer = d.observed_ms - d.expected_ms;
  const built = table("parts", [{ name: "kind", get: (p) => p.kind }, { name: "rank", num: true, get: (p) => p.rank, show: (p) => p.rank ?? "all" }, { name: "step", num: true, get: (p) => p.step, show: (p) => p.step ?? "all" }, { name: "ms a step", num: true, get: (p) => p.ms, show: (p) => `${p.ms > 0 ? "+" : ""}${number(p.ms)}` }], d.parts, { caption: "Where it went", most: 40 });
  return [h("div", { class: "tiles" }, tile(`${number(d.expected_ms)} ms`, "a step, expected"), tile(`${number(d.observed_ms)} ms`, "a step, observed"), tile(`${longer > 0 ? "+" : ""}${number(longer)} ms`, d.is_noise ? "difference, within the noise" : longer > 0 ? "longer" : "shorter", d.is_noise ? "" : longer > 0 ? "bad" : ""), tile(`${number(d.noise_ms)} ms`, "noise")),
    d.parts.length ? waterfallCard(d) : null, card("Where the difference went", d.parts.length ? built.node : empty("There is no difference", ""), { about: report.path, tools: d.parts.length ? built.tools : null })];
}

// From the expected step to the observed one: the bar of each kind begins where the one before it ends.
function waterfallCard({ parts, expected_ms: expected, observed_ms: observed }) {
  const sums = new Map();
  for (const part of parts) sums.set(String(part.kind), (sums.get(String(part.kind)) || 0) + (Number(part.ms) || 0));
  const kinds = [...sums].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const shown = kinds.slice(0, 11), rest = kinds.slice(11).reduce((sum, [, ms]) => sum + ms, 0);
  if (kinds.length > 11) shown.push([`${kinds.length - 11} others`, rest]);
  let at = expected;
  const steps = shown.map(([kind, ms]) => { const from = at; at += ms; return { kind, ms, from, to: at }; });
  const ends = [expected, observed, ...steps.flatMap((step) => [step.from, step.to])], low = Math.min(...ends), high = Math.max(...ends), room = (high - low || 1) * 0.12, floor = low - room > 0 ? low - room : 0;
  const rows = [{ kind: "expected", from: floor, to: expected, tone: "--faint" }, ...steps.map((step) => ({ ...step, tone: step.ms > 0 ? "--bad" : "--good" })), { kind: "observed", from: floor, to: observed, tone: "--faint" }];
  const say = (row) => (row.ms === undefined ? `${row.kind}: ${number(row.to)} ms` : `${row.kind}: ${row.ms > 0 ? "+" : ""}${number(row.ms)} ms`);
  const make = () => ({ traces: [{ type: "bar", orientation: "h", y: rows.map((r) => r.kind), base: rows.map((r) => r.from), x: rows.map((r) => r.to - r.from), text: rows.map(say), marker: { color: rows.map((r) => colour(r.tone)) }, hovertemplate: "%{text}" }], layout: { showlegend: false, margin: { l: 120 }, xaxis: { title: "ms a step", range: [floor, high + room] }, yaxis: { type: "category", autorange: "reversed" } } });
  return card("From expected to observed", chart(`Waterfall: ${rows.map(say).join(", ")}`, make, { size: "low" }), { about: "each bar begins where the one above it ends, so they add up to the difference" });
}

// Calibration: how often events with a predicted risk happened, on data that was not trained on.
function reliabilityCard(bins) {
  if (!bins?.length) return null;
  const most = Math.max(...bins.flatMap((bin) => [bin.predicted, bin.observed]), 1e-9);
  const make = () => ({ traces: [{ mode: "lines", name: "as said", x: [0, most], y: [0, most], line: { color: colour("--faint") }, hovertemplate: "as said" }, { mode: "lines+markers", name: "what came", x: bins.map((b) => b.predicted), y: bins.map((b) => b.observed), text: bins.map((b) => `${percent(b.predicted, 2)} said, ${percent(b.observed, 2)} came, ${whole(b.parts)} parts`), line: { color: COLOURS.compute }, marker: { color: COLOURS.compute, size: 8 }, hovertemplate: "%{text}" }], layout: { xaxis: { title: "risk that was said", rangemode: "tozero" }, yaxis: { title: "share that had an event", rangemode: "tozero" } } });
  return card("Reliability", chart("Risk that was said and share that had an event", make), { about: "on the diagonal the figures are right" });
}

function prediction(d, leftOut, report) {
  const built = table("risks", [{ name: "part", get: (r) => r.id, cut: true }, { name: "place", get: (r) => r.place ?? "", cut: true }, { name: "risk", num: true, get: (r) => r.risk, show: (r) => percent(r.risk, 2) }, { name: "why", wide: true, get: (r) => (r.reasons || []).join("; ") }], d.risks, { caption: "Risks", most: 30 });
  const { method, past_auc: auc, expected_events: expected, expected_range: range, tells_apart: tells, reliability } = d.calibration || {};
  return [h("div", { class: "tiles" }, tile(whole(d.risks.length + leftOut), "parts in place"), tile(number(expected), range ? `expected to have an event, ${number(range[0])} to ${number(range[1])} in 8 of 10 cases` : "expected to have an event"), tile(auc === null || auc === undefined ? "–" : number(auc), "past AUC; 0.5 is chance"), tile(`${number(d.horizon_days)} d`, "ahead")),
    tells === false ? h("p", { class: "alert" }, "Past risks were no better than chance: the level may be right, the order of parts says nothing.") : null,
    card("Riskiest parts", built.node, { about: `${report.path}, at ${clock(d.at_ns, { date: true })}, by ${method ?? "?"}${leftOut ? `; ${whole(leftOut)} lesser risks are left out` : ""}`, tools: built.tools }), reliabilityCard(reliability)];
}

const hours = (value) => `${number(value)} GPU-h`;

function advice(d, leftOut, report) {
  const gain = d.drains.reduce((sum, drain) => sum + drain.gain_gpu_h - drain.cost_gpu_h, 0);
  const drains = table("drains", [{ name: "node", get: (n) => n.node, cut: true }, { name: "risk", num: true, get: (n) => n.risk, show: (n) => percent(n.risk, 2) }, { name: "costs", num: true, get: (n) => n.cost_gpu_h, show: (n) => hours(n.cost_gpu_h) }, { name: "saves", num: true, get: (n) => n.gain_gpu_h, show: (n) => hours(n.gain_gpu_h) }, { name: "why", wide: true, get: (n) => (n.reasons || []).join("; ") }], d.drains, { caption: "Nodes to take out", most: 30 });
  const jobs = table("jobs", [{ name: "job", get: (j) => j.job, cut: true }, { name: "nodes", num: true, get: (j) => j.nodes }, { name: "failures a day", num: true, get: (j) => j.failures_per_day, show: (j) => number(j.failures_per_day) }, { name: "checkpoint every", num: true, get: (j) => j.checkpoint_interval_s, show: (j) => seconds(j.checkpoint_interval_s) }], d.jobs, { caption: "Jobs", search: false });
  const nodes = table("nodes", [{ name: "node", get: (n) => n.id, cut: true, show: (n) => h("a", { href: address.link("/history", { host: n.id }) }, n.id) }, { name: "risk", num: true, get: (n) => n.risk, show: (n) => percent(n.risk, 2) }, { name: "parts", num: true, get: (n) => n.parts }, { name: "why", wide: true, get: (n) => (n.reasons || []).join("; ") }], d.nodes, { caption: "Nodes", most: 30 });
  const commands = [...(d.slurm || []), ...(d.kubernetes || [])];
  return [h("div", { class: "tiles" }, tile(whole(d.drains.length), "nodes better taken out"), tile(hours(gain), `saved by that, as expected${cost(gain * 3600, ", ")}`), tile(whole(d.spares), "spares to keep"), tile(percent(d.break_even, 1), "risk above which it pays")),
    card("Take out before a long run", d.drains.length ? drains.node : empty("No node is worth taking out", `Each would have to fail with more than ${percent(d.break_even, 1)}.`), { about: `${report.path}, at ${clock(d.at_ns, { date: true })}; nothing of it has been done`, tools: d.drains.length ? drains.tools : null }),
    d.jobs.length ? card("Jobs that run", jobs.node, { tools: jobs.tools }) : null, card("Nodes", nodes.node, { about: leftOut ? `${whole(leftOut)} lesser risks are left out` : "riskiest first", tools: nodes.tools }), reliabilityCard(d.reliability),
    commands.length ? card("Commands", h("pre", {}, commands.join("\n")), { about: "to be run by you" }) : null];
}

function replay(d, _, report) {
  const built = table("replayed", [{ name: "policy", get: (p) => p.policy }, { name: "goodput", num: true, get: (p) => p.goodput, show: (p) => percent(p.goodput, 2) }, { name: "lost", num: true, get: (p) => p.lost_gpu_h, show: (p) => hours(p.lost_gpu_h) }, { name: "done again", num: true, get: (p) => p.rework_gpu_h, show: (p) => hours(p.rework_gpu_h) }, { name: "writing checkpoints", num: true, get: (p) => p.saving_gpu_h, show: (p) => hours(p.saving_gpu_h) }, { name: "restarts", num: true, get: (p) => p.restart_gpu_h, show: (p) => hours(p.restart_gpu_h) }, { name: "taken out", num: true, get: (p) => p.drained_gpu_h, show: (p) => hours(p.drained_gpu_h) }, { name: "failures", num: true, get: (p) => p.failures }, { name: "saves", num: true, get: (p) => p.saved, show: (p) => percent(p.saved, 1) }], d.policies, { caption: "Policies", search: false });
  const make = () => ({ traces: [{ type: "bar", orientation: "h", y: d.policies.map((p) => p.policy), x: d.policies.map((p) => p.lost_gpu_h), marker: { color: SERIES[0] }, hovertemplate: "%{y}: %{x} GPU-h lost" }], layout: { showlegend: false, margin: { l: 200 }, xaxis: { title: "GPU-hours lost" }, yaxis: { type: "category", autorange: "reversed" } } });
  return [h("div", { class: "tiles" }, tile(whole(d.nodes), "nodes"), tile(whole(d.faults), "faults of the past"), tile(d.best_fixed, "best fixed interval, with hindsight"), tile(percent(d.break_even_precision, 1), "swaps that must be right to pay")),
    card("What the advice would have saved", chart("GPU-hours lost by policy", make), { about: report.path }), card("Policies", built.node, { about: "saves: share of what the best fixed interval loses", tools: built.tools })];
}

const waits = (more = []) => [...more, { name: "jobs", num: true, get: (p) => p.jobs, show: (p) => whole(p.jobs) }, { name: "mean wait", num: true, get: (p) => p.mean_queue_s, show: (p) => seconds(p.mean_queue_s) }, { name: "median wait", num: true, get: (p) => p.p50_queue_s, show: (p) => seconds(p.p50_queue_s) }, { name: "p99 wait", num: true, get: (p) => p.p99_queue_s, show: (p) => seconds(p.p99_queue_s) }];

function placement(d, _, report) {
  const rows = Object.entries(d.policies).map(([policy, found]) => ({ policy, ...found }));
  const built = table("policies", [...waits([{ name: "policy", get: (p) => p.policy }]), { name: "ran elsewhere", num: true, get: (p) => p.moved_pct, show: (p) => (p.moved_pct === undefined ? "–" : `${number(p.moved_pct)} %`) }, { name: "idle while jobs waited", num: true, get: (p) => p.idle_gpu_h, show: (p) => hours(p.idle_gpu_h) }, { name: "worst owner's slowdown", num: true, get: (p) => p.unfairness?.max_slowdown_ratio, show: (p) => (p.unfairness ? `${number(p.unfairness.max_slowdown_ratio)} × (${p.unfairness.worst_cluster || "none"})` : "–") }, { name: "fit nowhere", num: true, get: (p) => p.left_out, show: (p) => whole(p.left_out) }], rows, { caption: "Policies", search: false });
  const parts = [["by_cluster", "cluster"], ["by_size", "GPUs"], ["by_user", "user"], ["by_type", "type"]].map(([key, name]) => {
    const own = rows.flatMap((row) => Object.entries(row[key] || {}).map(([value, found]) => ({ policy: row.policy, value, ...found })));
    const by = table(key, waits([{ name, get: (s) => s.value, cut: true }, { name: "policy", get: (s) => s.policy }]), own, { caption: `By ${name}`, most: 40 });
    return own.length ? card(`By ${name}`, by.node, { tools: by.tools }) : null;
  });
  return [card("Queues by policy", built.node, { about: report.path, tools: built.tools }), parts];
}

function choice(d, _, report) {
  const built = table("choices", [{ name: "cluster", get: (c) => c.cluster }, { name: "starts in", num: true, get: (c) => c.start_s, show: (c) => seconds(c.start_s) }, { name: "ends within", num: true, get: (c) => c.finish_s, show: (c) => seconds(c.finish_s) }, { name: "cost", num: true, get: (c) => c.cost, show: (c) => number(c.cost) }, { name: "in time", get: (c) => (c.fits ? (c.meets_deadline ? "yes" : "no") : "does not fit") }, { name: "why", wide: true, get: (c) => c.why }], d.choices, { caption: "Clusters", search: false });
  return [h("div", { class: "tiles" }, tile(d.best ?? "none", "best cluster"), tile(d.second ?? "none", "second"), tile(whole(d.gpus), "GPUs")), card(`Where ${d.job} could run`, built.node, { about: report.path, tools: built.tools })];
}

function goodput(d, _, report) {
  const part = (name, keys) => { const rows = Array.isArray(d[name]) ? d[name] : []; if (!rows.length) return null; const built = table(name, [...keys.map((key) => ({ name: key, get: (row) => row[key], cut: true })), { name: "GPU-hours", num: true, get: (row) => row.gpu_hours, show: (row) => number(row.gpu_hours) }, { name: "share", num: true, get: (row) => row.share, show: (row) => percent(row.share, 1) }], rows, { caption: name, most: 30, sort: ["GPU-hours", true] }); return card(`By ${keys.join(" and ")}`, built.node, { tools: built.tools }); };
  return [h("div", { class: "tiles" }, tile(percent(d.goodput, 1), "of GPU-hours trained"), tile(number(d.gpu_hours), "GPU-hours"), cost(1) ? tile(cost((1 - d.goodput) * d.gpu_hours * 3600), "for what did not train") : null), card("Goodput", h("p", { class: "note" }, report.path)), part("by_cause", ["kind", "cause"]), part("by_run", ["run", "kind"]), part("by_week", ["week", "kind"])];
}
