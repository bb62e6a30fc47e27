// Reports: what investigate, compare, predict, goodput and place printed.
import * as address from "../address.js";
import { COLOURS, chart, colour } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, clock, number, percent, seconds, whole, words } from "../units.js";

const COMMANDS = { investigation: "prism investigate job-17/ --json > out/job-17.json", comparison: "prism compare before.parquet after.parquet --json > out/compare.json", prediction: "prism predict events.parquet --at 2026-10-01 --json > out/risks.json", goodput: "prism goodput runs/* --json > out/goodput.json", placement: "prism place simulate jobs.csv --clusters clusters.yaml --json > out/place.json" };

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

const SHOW = { investigation, comparison, prediction, goodput, placement };
const links = (report) => h("span", { class: "chips" }, report.has_page ? h("a", { class: "button", href: address.link("/api/report", { key: report.path }), "data-outside": "yes" }, "Its own page") : null,
  h("a", { class: "button", href: address.link("/api/printed", { path: report.path }), "data-outside": "yes" }, "JSON"));
const show = ({ report, document, risks_left_out }) => h("div", {}, h("div", { class: "head" }, badge(report.kind, "info"), h("b", {}, report.path), h("span", { class: "grow" }), links(report)), SHOW[report.kind](document, risks_left_out, report), document.notes?.length ? card("Notes", h("ul", { class: "notes" }, document.notes.map((note) => h("li", {}, String(note))))) : null);

const who = (suspect) => (typeof suspect === "object" && suspect ? `${suspect.type ?? ""} ${suspect.id ?? ""}`.trim() : String(suspect));

function investigation({ verdict, evidence }, _, report) {
  const facts = [["who", (verdict.culprits || []).map(who).join(", ") || "nobody can be named"], ["or", (verdict.alternatives || []).map(who).join(", ")], ["since", verdict.since_ns ? clock(verdict.since_ns, { date: true }) : "not known"], ["sure", percent(verdict.confidence)], ["next", verdict.next]];
  const built = table("evidence", [{ name: "source", get: (c) => c.source }, { name: "what it says", wide: true, get: (c) => c.text }], evidence, { caption: "Evidence" });
  return [card(verdict.what || report.path, h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), { about: report.path }), card("Evidence", built.node, { tools: built.tools })];
}

function comparison(d, _, report) {
  const longer = d.observed_ms - d.expected_ms;
  const built = table("parts", [{ name: "kind", get: (p) => p.kind }, { name: "rank", num: true, get: (p) => p.rank, show: (p) => p.rank ?? "all" }, { name: "step", num: true, get: (p) => p.step, show: (p) => p.step ?? "all" }, { name: "ms a step", num: true, get: (p) => p.ms, show: (p) => `${p.ms > 0 ? "+" : ""}${number(p.ms)}` }], d.parts, { caption: "Where it went", most: 40 });
  return [h("div", { class: "tiles" }, tile(`${number(d.expected_ms)} ms`, "a step, expected"), tile(`${number(d.observed_ms)} ms`, "a step, observed"), tile(`${longer > 0 ? "+" : ""}${number(longer)} ms`, d.is_noise ? "difference, within the noise" : longer > 0 ? "longer" : "shorter", d.is_noise ? "" : longer > 0 ? "bad" : ""), tile(`${number(d.noise_ms)} ms`, "noise")),
    d.parts.length ? waterfallCard(d) : null, card("Where the difference went", d.parts.length ? built.node : empty("There is no difference", ""), { about: report.path, tools: d.parts.length ? built.tools : null })];
}

// From the expected step to the observed one: each kind's bar begins where the one before it ended.
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

const list = (value) => (Array.isArray(value) ? value.filter((row) => row && typeof row === "object") : []);

// How often what was said to come with a risk did come, on data that training did not see; drawn where the prediction holds it.
function reliabilityCard(calibration) {
  const bins = list(calibration?.reliability || calibration?.bins).map((bin) => ({ said: bin.predicted ?? bin.mean_predicted ?? bin.risk, came: bin.observed ?? bin.share ?? bin.rate, size: bin.parts ?? bin.count ?? bin.n })).filter((bin) => Number.isFinite(bin.said) && Number.isFinite(bin.came));
  if (!bins.length) return null;
  const most = Math.max(...bins.flatMap((bin) => [bin.said, bin.came]), 1e-9);
  const make = () => ({ traces: [{ mode: "lines", name: "as said", x: [0, most], y: [0, most], line: { color: colour("--faint") }, hovertemplate: "as said" }, { mode: "lines+markers", name: "what came", x: bins.map((b) => b.said), y: bins.map((b) => b.came), text: bins.map((b) => `${percent(b.said, 2)} said, ${percent(b.came, 2)} came${Number.isFinite(b.size) ? `, ${whole(b.size)} parts` : ""}`), line: { color: COLOURS.compute }, marker: { color: COLOURS.compute, size: 8 }, hovertemplate: "%{text}" }], layout: { xaxis: { title: "risk that was said", rangemode: "tozero" }, yaxis: { title: "share that had an event", rangemode: "tozero" } } });
  return card("Reliability", chart("Risk that was said and share that had an event", make), { about: "on the diagonal the figures are right" });
}

function adviceCard(d) {
  const advice = list(d.advice), saved = d.savings || d.replay || (d.advice && !Array.isArray(d.advice) ? d.advice : null);
  const facts = saved && typeof saved === "object" ? Object.entries(saved).filter(([, value]) => ["number", "string", "boolean"].includes(typeof value)) : [];
  if (!advice.length && !facts.length) return null;
  const built = table("advice", [{ name: "part", get: (a) => a.id ?? a.part ?? a.node, cut: true }, { name: "do", wide: true, get: (a) => String(a.action ?? a.what ?? a.text ?? "") }, { name: "why", wide: true, get: (a) => String(a.why ?? a.reason ?? (Array.isArray(a.reasons) ? a.reasons.join("; ") : "")) }, { name: "saves", num: true, get: (a) => a.saved_gpu_hours ?? a.saves_gpu_hours ?? null, show: (a) => number(a.saved_gpu_hours ?? a.saves_gpu_hours ?? null) }], advice, { caption: "Advice", most: 30 });
  return card("Advice", h("div", {}, facts.length ? h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, words(name)), h("dd", {}, typeof value === "number" ? number(value) : String(value))])) : null, advice.length ? built.node : null), { about: "what following it would have saved, as the prediction says", tools: advice.length ? built.tools : null });
}

function placement(d, _, report) {
  const rows = Object.entries(d.policies).filter(([, found]) => found && typeof found === "object").map(([policy, found]) => ({ policy, ...found }));
  const built = table("policies", [{ name: "policy", get: (p) => p.policy }, { name: "mean wait", num: true, get: (p) => p.mean_queue_s, show: (p) => seconds(p.mean_queue_s) }, { name: "p99 wait", num: true, get: (p) => p.p99_queue_s, show: (p) => seconds(p.p99_queue_s) }], rows, { caption: "Policies", search: false });
  const sites = rows.flatMap((row) => Object.entries(row.by_cluster || {}).map(([cluster, found]) => ({ policy: row.policy, cluster, ...(found && typeof found === "object" ? found : { mean_queue_s: found }) })));
  const by = table("sites", [{ name: "cluster", get: (s) => s.cluster, cut: true }, { name: "policy", get: (s) => s.policy }, { name: "mean wait", num: true, get: (s) => s.mean_queue_s, show: (s) => seconds(s.mean_queue_s) }, { name: "p99 wait", num: true, get: (s) => s.p99_queue_s, show: (s) => seconds(s.p99_queue_s) }], sites, { caption: "Clusters", most: 40 });
  return [card("Queues by policy", built.node, { about: report.path, tools: built.tools }), sites.length ? card("By cluster", by.node, { tools: by.tools }) : null];
}

function prediction(d, leftOut, report) {
  const built = table("risks", [{ name: "part", get: (r) => r.id, cut: true }, { name: "risk", num: true, get: (r) => r.risk, show: (r) => percent(r.risk, 2) }, { name: "why", wide: true, get: (r) => (r.reasons || []).join("; ") }], d.risks, { caption: "Risks", most: 30 });
  const { method, past_auc: auc, expected_events: expected } = d.calibration || {};
  return [h("div", { class: "tiles" }, tile(whole(d.risks.length + leftOut), "parts in place"), tile(number(expected), "expected to have an event"), tile(auc === null || auc === undefined ? "–" : number(auc), "past AUC; 0.5 is chance"), tile(`${number(d.horizon_days)} d`, "ahead")),
    card("Riskiest parts", built.node, { about: `${report.path}, at ${clock(d.at_ns, { date: true })}, by ${method ?? "?"}${leftOut ? `; ${whole(leftOut)} lesser risks are left out` : ""}`, tools: built.tools }), reliabilityCard(d.calibration), adviceCard(d)];
}

function goodput(d, _, report) {
  const part = (name, keys) => { const rows = Array.isArray(d[name]) ? d[name] : []; if (!rows.length) return null; const built = table(name, [...keys.map((key) => ({ name: key, get: (row) => row[key], cut: true })), { name: "GPU-hours", num: true, get: (row) => row.gpu_hours, show: (row) => number(row.gpu_hours) }, { name: "share", num: true, get: (row) => row.share, show: (row) => percent(row.share, 1) }], rows, { caption: name, most: 30, sort: ["GPU-hours", true] }); return card(`By ${keys.join(" and ")}`, built.node, { tools: built.tools }); };
  return [h("div", { class: "tiles" }, tile(percent(d.goodput, 1), "of GPU-hours trained"), tile(number(d.gpu_hours), "GPU-hours")), card("Goodput", h("p", { class: "note" }, report.path)), part("by_cause", ["kind", "cause"]), part("by_run", ["run", "kind"]), part("by_week", ["week", "kind"])];
}
