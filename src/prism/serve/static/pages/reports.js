// Reports: what investigate, compare, predict and goodput printed.
import * as address from "../address.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, clock, number, percent, whole } from "../units.js";

const COMMANDS = { investigation: "prism investigate job-17/ --json > out/job-17.json", comparison: "prism compare before.parquet after.parquet --json > out/compare.json", prediction: "prism predict events.parquet --at 2026-10-01 --json > out/risks.json", goodput: "prism goodput runs/* --json > out/goodput.json" };

export async function reports({ go }) {
  const node = h("div", {});
  const draw = async () => {
    const { reports: rows, left_out } = await load("reports");
    const head = h("div", { class: "head" }, h("h1", {}, "Reports"), h("span", { class: "sub" }, "investigations, comparisons, predictions, goodput"));
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

const SHOW = { investigation, comparison, prediction, goodput };
const show = ({ report, document, risks_left_out }) => h("div", {}, SHOW[report.kind](document, risks_left_out, report), document.notes?.length ? card("Notes", h("ul", { class: "notes" }, document.notes.map((note) => h("li", {}, String(note))))) : null);

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
    card("Where the difference went", d.parts.length ? built.node : empty("There is no difference", ""), { about: report.path, tools: d.parts.length ? built.tools : null })];
}

function prediction(d, leftOut, report) {
  const built = table("risks", [{ name: "part", get: (r) => r.id, cut: true }, { name: "risk", num: true, get: (r) => r.risk, show: (r) => percent(r.risk, 2) }, { name: "why", wide: true, get: (r) => (r.reasons || []).join("; ") }], d.risks, { caption: "Risks", most: 30 });
  const { method, past_auc: auc, expected_events: expected } = d.calibration || {};
  return [h("div", { class: "tiles" }, tile(whole(d.risks.length + leftOut), "parts in place"), tile(number(expected), "expected to have an event"), tile(auc === null || auc === undefined ? "–" : number(auc), "past AUC; 0.5 is chance"), tile(`${number(d.horizon_days)} d`, "ahead")),
    card("Riskiest parts", built.node, { about: `${report.path}, at ${clock(d.at_ns, { date: true })}, by ${method ?? "?"}${leftOut ? `; ${whole(leftOut)} lesser risks are left out` : ""}`, tools: built.tools })];
}

function goodput(d, _, report) {
  const part = (name, keys) => { const rows = Array.isArray(d[name]) ? d[name] : []; if (!rows.length) return null; const built = table(name, [...keys.map((key) => ({ name: key, get: (row) => row[key], cut: true })), { name: "GPU-hours", num: true, get: (row) => row.gpu_hours, show: (row) => number(row.gpu_hours) }, { name: "share", num: true, get: (row) => row.share, show: (row) => percent(row.share, 1) }], rows, { caption: name, most: 30, sort: ["GPU-hours", true] }); return card(`By ${keys.join(" and ")}`, built.node, { tools: built.tools }); };
  return [h("div", { class: "tiles" }, tile(percent(d.goodput, 1), "of GPU-hours trained"), tile(number(d.gpu_hours), "GPU-hours")), card("Goodput", h("p", { class: "note" }, report.path)), part("by_cause", ["kind", "cause"]), part("by_run", ["run", "kind"]), part("by_week", ["week", "kind"])];
}
