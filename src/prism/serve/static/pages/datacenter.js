// Datacenter: the report of a characterization.
import * as address from "../address.js";
import { COLOURS, SERIES, chart } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, number, percent, plural, seconds, whole, words } from "../units.js";

const DAYS = ["", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

export async function datacenter({ go }) {
  const node = h("div", {});
  const draw = async () => clear(node, ...page(await load("datacenter"), go));
  await draw();
  return { node, refresh: draw };
}

function page({ reports }, go) {
  if (!reports.length) return [h("div", { class: "head" }, h("h1", {}, "Datacenter")), card("Workload", empty("No report is here", "Characterize a scheduler's job table with the output below this folder.", "prism characterize trace.csv --output datacenter/"))];
  const all = reports.flatMap((report) => report.clusters.map((cluster, i) => ({ report, cluster, id: `${report.key}#${i}` })));
  const chosen = all.find((entry) => entry.id === address.get("cluster")) || all[0];
  const { cluster: c, report } = chosen;
  const choose = all.length > 1 ? h("select", { "aria-label": "Cluster", onchange: (event) => go("/datacenter", { cluster: event.target.value }) }, all.map((entry) => h("option", { value: entry.id, selected: entry === chosen }, `${entry.report.place} · ${entry.cluster.cluster}`))) : null;
  return [
    h("div", { class: "head" }, h("h1", {}, `Workload of ${c.cluster ?? report.place}`), c.synthetic ? badge("synthetic", "warn") : null, h("span", { class: "sub" }, `${report.place}, changed ${ago(report.updated_ns)}`), h("span", { class: "grow" }), choose, report.page ? h("a", { class: "button", href: address.link("/api/report", { key: report.key }), target: "_blank", rel: "noopener" }, "Stand-alone report") : null),
    h("div", { class: "tiles" }, tile(whole(c.jobs), "jobs"), tile(whole(c.gpu_jobs), "GPU jobs"), tile(whole(c.gpu_hours), "GPU-hours"), tile(number(c.mean_gpus), "GPUs of a job, mean"), tile(seconds(c.median_duration_s), "median duration"), tile(seconds(c.median_queue_s), "median queueing"), c.capacity ? tile(`${number(c.capacity.allocated_pct)} %`, "of GPUs allocated") : null, c.reliability?.gpu_hours_per_failure ? tile(whole(c.reliability.gpu_hours_per_failure), "GPU-hours a failure") : null),
    h("div", { class: "grid" }, sharesCard("Final states", c.states), sharesCard("Job types", c.types)),
    h("div", { class: "grid" }, lengthsCard("Duration by type", c.types?.duration_s), lengthsCard("Queueing by type", c.types?.queue_s)),
    h("div", { class: "grid" }, sizesCard(c), arrivalsCard(c)),
    failuresCard(c), adviceCard(c), utilisationCard(c), usersCard(c), comparisonCard(report.comparison),
    c.notes?.length ? card("What to know about this trace", h("ul", { class: "notes" }, c.notes.map((note) => h("li", {}, note)))) : null,
  ];
}

function sharesCard(title, shares) {
  const names = Object.keys(shares?.by_count_pct || {});
  if (!names.length) return card(title, empty("Not in the trace", ""));
  const make = () => ({
    traces: [["of jobs", shares.by_count_pct, COLOURS.compute], ["of GPU time", shares.by_gpu_time_pct || {}, COLOURS.dp]].map(([name, values, paint]) => ({ type: "bar", name, x: names, y: names.map((n) => values[n]), marker: { color: paint }, hovertemplate: `%{x}: %{y:.2f} % ${name}<extra></extra>` })),
    layout: { barmode: "group", yaxis: { title: "percent", rangemode: "tozero" }, xaxis: { type: "category" } },
  });
  return card(title, chart(title, make), { about: "GPU jobs" });
}

function lengthsCard(title, lengths) {
  const names = Object.keys(lengths || {});
  if (!names.length) return card(title, empty("Not in the trace", ""));
  const at = ["p10", "p25", "median", "p75", "p90", "p99"];
  const make = () => ({
    traces: at.map((q, i) => ({ type: "scatter", mode: "markers", name: q, x: names.map((n) => lengths[n][q] || null), y: names, marker: { size: q === "median" ? 12 : 8, symbol: q === "median" ? "diamond" : "circle", color: SERIES[i] }, hovertemplate: `%{y} ${q}: %{x:,.0f} s<extra></extra>` })),
    layout: { xaxis: { type: "log", title: "seconds" }, yaxis: { type: "category", autorange: "reversed" }, margin: { l: 80, r: 14, t: 10, b: 40 } },
  });
  return card(title, chart(title, make), { about: "quantiles" });
}

function sizesCard(c) {
  const sizes = c.sizes || [];
  if (!sizes.length) return card("Jobs by size", empty("Not in the trace", ""));
  const make = () => ({
    traces: [["jobs", "jobs_ge_pct", COLOURS.compute], ["GPU time", "gpu_time_ge_pct", COLOURS.dp]].map(([name, column, paint]) => ({ type: "scatter", mode: "lines", name, line: { shape: "hv", color: paint, width: 1.8 }, x: sizes.map((s) => s.gpus), y: sizes.map((s) => s[column]), hovertemplate: `%{y:.1f} % of ${name} in jobs of %{x} GPUs or more<extra></extra>` })),
    layout: { xaxis: { type: "log", title: "GPUs or more" }, yaxis: { title: "percent", range: [0, 104] } },
  });
  return card("Jobs by size", chart("Jobs by size", make));
}

function arrivalsCard(c) {
  const found = c.arrivals?.by_weekday_hour || [];
  if (!found.length) return card("Arrivals", empty("Not in the trace", ""));
  const grid = DAYS.slice(1).map((_, d) => Array.from({ length: 24 }, (_, hour) => found.find((a) => a.weekday === d + 1 && a.hour === hour)?.jobs ?? 0));
  const make = () => ({
    traces: [{ type: "heatmap", z: grid, x: Array.from({ length: 24 }, (_, i) => i), y: DAYS.slice(1), hovertemplate: "%{y} %{x}:00, %{z} jobs<extra></extra>" }],
    layout: { xaxis: { title: `hour, ${c.arrivals.clock}`, range: [-0.5, 23.5] }, yaxis: { autorange: "reversed" } },
  });
  return card("Arrivals", chart("Arrivals by weekday and hour", make), { about: "jobs submitted" });
}

function failuresCard(c) {
  const rows = c.failures || [];
  if (!rows.length) return null;
  const built = table("failures", [
    { name: "reason", get: (f) => f.reason ?? f.state, cut: true }, { name: "class", get: (f) => f.category, show: (f) => (f.category ? badge(f.category) : "–") }, { name: "count", num: true, get: (f) => f.count, show: (f) => whole(f.count) }, { name: "mean GPUs", num: true, get: (f) => f.mean_gpus, show: (f) => number(f.mean_gpus) },
    { name: "median time to failure", num: true, get: (f) => f.ttf_median_s, show: (f) => seconds(f.ttf_median_s) }, { name: "of failed GPU time", num: true, get: (f) => f.gpu_time_pct, show: (f) => (f.gpu_time_pct === null ? "–" : `${number(f.gpu_time_pct)} %`) }, { name: "median time to restart", num: true, get: (f) => f.restart_median_s, show: (f) => seconds(f.restart_median_s) },
  ], rows, { most: 12, sort: ["of failed GPU time", true], caption: "Failures" });
  return card("Failures", built.node, { tools: built.tools, about: "costliest first" });
}

function adviceCard(c) {
  const plan = c.checkpoint_advice;
  if (!plan?.advice?.length) return null;
  const built = table("advice", [
    { name: "job GPUs", num: true, get: (a) => a.gpus, show: (a) => whole(a.gpus) }, { name: "time between failures", num: true, get: (a) => a.mtbf_hours, show: (a) => seconds(3600 * a.mtbf_hours) }, { name: "best interval", num: true, get: (a) => a.interval_s, show: (a) => seconds(a.interval_s) }, { name: "Young's interval", num: true, get: (a) => a.young_interval_s, show: (a) => seconds(a.young_interval_s) }, { name: "expected goodput", num: true, get: (a) => a.goodput_pct, show: (a) => `${number(a.goodput_pct)} %` },
  ], plan.advice, { caption: "Checkpoint interval" });
  return card("Checkpoint interval", h("div", {}, built.node, h("p", { class: "note" }, `From ${plan.basis}. ${plan.formula ?? ""}`)), { tools: built.tools });
}

function utilisationCard(c) {
  if (!c.utilisation?.length) return null;
  const built = table("utilisation", [{ name: "metric", get: (u) => u.metric, show: (u) => words(u.metric) }, ...["mean", "p10", "p50", "p90", "p99"].map((q) => ({ name: q, num: true, get: (u) => u[q], show: (u) => number(u[q]) }))], c.utilisation, { caption: "Utilisation" });
  return card("Utilisation", built.node, { tools: built.tools });
}

function usersCard(c) {
  const top = c.users?.top || [];
  if (!top.length) return null;
  const built = table("users", [
    { name: "user", get: (u) => u.user, cut: true }, { name: "jobs", num: true, get: (u) => u.jobs, show: (u) => whole(u.jobs) }, { name: "GPU jobs", num: true, get: (u) => u.gpu_jobs, show: (u) => whole(u.gpu_jobs) },
    { name: "GPU-hours", num: true, get: (u) => u.gpu_time_s / 3600, show: (u) => whole(u.gpu_time_s / 3600) }, { name: "of GPU time", num: true, get: (u) => u.gpu_time_pct, show: (u) => `${number(u.gpu_time_pct)} %` },
  ], top, { most: 8, caption: "Users" });
  return card("Users", built.node, { tools: built.tools, about: `${plural(c.users.users, "user")}; the top 5 % take ${percent((c.users.top_5pct_users_gpu_time_pct ?? 0) / 100)} of GPU time` });
}

function comparisonCard(comparison) {
  const clusters = { ...(comparison.clusters || {}), ...(comparison.references || {}) };
  const names = Object.keys(clusters);
  if (!names.length) return null;
  const metrics = [...new Set(names.flatMap((name) => Object.keys(clusters[name])))];
  const show = (metric, value) => (value === null || value === undefined ? "–" : typeof value !== "number" ? String(value) : metric.endsWith("_s") ? seconds(value) : metric.endsWith("_pct") ? `${number(value)} %` : number(value));
  const label = (metric) => words(metric.replace(/_(s|pct)$/, ""));
  const built = table("comparison", [{ name: "measure", get: label, show: label }, ...names.map((name) => ({ name, num: true, get: (metric) => clusters[name][metric], show: (metric) => show(metric, clusters[name][metric]) }))], metrics, { most: 60, caption: "Comparison" });
  return card("Beside other datacenters", h("div", {}, built.node, comparison.differences?.length ? h("ul", { class: "notes" }, comparison.differences.map((line) => h("li", {}, line))) : null), { tools: built.tools, about: "published figures: AcmeTrace, CC-BY-4.0" });
}
