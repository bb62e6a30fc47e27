// Job: the timeline, steps, where time goes, groups and stages, findings, and expected over observed.
import * as address from "../address.js";
import { COLOURS, chart, colour } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, health, tile } from "../dom.js";
import { savePicture } from "../export.js";
import { openInPerfetto } from "../perfetto.js";
import { table } from "../table.js";
import { Timeline } from "../timeline.js";
import { ago, bytes, clock, cost, number, percent, plural, seconds, whole, words } from "../units.js";
import { findingsCard } from "./cluster.js";

export async function job({ go }) {
  const { jobs } = await load("jobs", { limit: 500 });
  const key = address.get("key") || (jobs.find((j) => j.has_timeline && j.num_findings) || jobs.find((j) => j.has_timeline) || jobs[0])?.key;
  if (!key) return { node: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Job")), card("Timeline", empty("No job is known yet", "A diagnosis, an emulation or a scenario below this folder brings its timeline.", "prism diagnose flows.parquet --output report/"))) };
  if (!address.get("key")) address.set({ key });
  const page = new JobPage(key, jobs, go);
  await page.load();
  return { node: page.node, start: () => page.start(), close: () => page.close(), refresh: () => page.refresh(), repaint: () => page.timeline?.draw(), key: (event) => page.timeline?.onKey(event) };
}

class JobPage {
  constructor(key, jobs, go) {
    this.key = key; this.jobs = jobs; this.go = go;
    this.node = h("div", {});
  }

  async load() {
    this.data = await load("job", { key: this.key });
    this.origin = BigInt(this.data.origin_ns);
    if (this.data.job.has_timeline) this.timeline = this.makeTimeline();
    this.steps = this.data.steps;
    this.parts = { head: h("div", {}), below: h("div", {}) };
    this.draw();
    clear(this.node, this.parts.head, this.timeline ? card("Timeline", this.timeline.node, { about: "ranks by time, coloured by kind" }) : null, this.parts.below);
  }

  start() { this.timeline?.start(); }
  close() { this.timeline?.stop(); clearTimeout(this.waiting); }

  async refresh() {
    const [data, { jobs }] = await Promise.all([load("job", { key: this.key }), load("jobs", { limit: 500 })]);
    this.data = data; this.jobs = jobs;
    if (data.steps.length) this.steps = data.steps;
    if (this.timeline) { this.timeline.findings = data.findings; this.timeline.refresh(); }
    this.draw();
  }

  readState() {
    const from = address.get("from"), to = address.get("to");
    const wanted = address.get("expected", "auto");
    const suggested = this.data.expected.find((e) => e.suggested)?.key || "";
    return {
      from: from ? Number(BigInt(from) - this.origin) : null, to: to ? Number(BigInt(to) - this.origin) : null, row: Number(address.get("row", "0")) || 0,
      by: address.get("by") === "lane" ? "lane" : "rank", hide: new Set(address.get("hide").split(",").filter(Boolean)),
      expected: wanted === "auto" ? "" : wanted === "suggested" ? suggested : wanted,
    };
  }

  makeTimeline() {
    return new Timeline({
      key: this.key, state: this.readState(), findings: this.data.findings, ranks: this.data.ranks, steps: () => this.steps, tools: () => this.tools(),
      onchange: (state, push) => { clearTimeout(this.waiting); this.waiting = setTimeout(() => this.write(state, push), push ? 0 : 120); },
      onfirst: (document) => { if (!this.steps.length && document.steps.length) { this.origin = BigInt(document.origin_ns); this.steps = document.steps; this.draw(); } },
    });
  }

  write(state, push) {
    address.set({
      from: (this.origin + BigInt(state.from)).toString(), to: (this.origin + BigInt(state.to)).toString(), row: state.row || null, by: state.by === "lane" ? "lane" : null,
      hide: [...state.hide].join(","), expected: state.expected || null,
    }, { push });
    clearTimeout(this.measuring);
    this.measuring = setTimeout(() => this.drawBreakdown(), 350);
  }

  tools() {
    const said = h("span", { class: "note", role: "status" });
    const url = address.link("/api/trace", { key: this.key });
    const choice = this.data.expected.length ? h("select", { "aria-label": "What to lay over", title: "What was expected, under what was observed", onchange: (event) => { this.timeline.state.expected = event.target.value; this.timeline.changed(true); } },
      h("option", { value: "" }, "no expectation"), this.data.expected.map((e) => h("option", { value: e.key, selected: e.key === this.timeline.state.expected }, `expected: ${e.title}`))) : null;
    return [said, choice,
      h("button", { title: "Open this job's trace in ui.perfetto.dev, in a new tab", onclick: () => openInPerfetto(url, `${this.data.job.place}-${this.data.job.id}`.replaceAll("/", "-"), (text) => clear(said, text)).catch((error) => clear(said, error.message)) }, "Open in Perfetto"),
      h("button", { title: "The timeline as it is shown, as a picture", onclick: () => savePicture(this.timeline.canvas, "timeline") }, "PNG"),
      h("a", { class: "button", href: url, download: "", title: "The same as a file" }, "Download trace")];
  }

  draw() {
    const { data } = this, { job } = data;
    const choose = h("select", { "aria-label": "Job", onchange: (event) => this.go("/job", { key: event.target.value }) }, this.jobs.map((j) => h("option", { value: j.key, selected: j.key === this.key }, `${j.place} · ${j.id}`)));
    const looks = data.looks.length > 1 ? h("select", { "aria-label": "Look", title: "Looks at this job, newest first", onchange: (event) => this.go("/job", { key: event.target.value }) }, data.looks.map((look) => h("option", { value: look.key, selected: look.key === this.key }, `${clock(look.looked_until_ns, { date: true })} · ${look.place}`))) : null;
    clear(this.parts.head,
      h("div", { class: "head" }, h("h1", {}, job.id), job.health === "unknown" ? badge(job.health_text) : health(job.health, job.health_text), job.layout && h("span", { class: "mono" }, job.layout), job.state === "unknown" ? null : badge(job.state, job.state === "stopped" ? "warn" : ""), job.stale ? badge("stale", "warn") : null,
        h("span", { class: "sub" }, `${job.source} · ${job.place}`, Number(job.looked_until_ns) ? `, as of ${clock(job.looked_until_ns, { date: true })} (${ago(job.looked_until_ns)})` : ""), h("span", { class: "grow" }), looks, choose),
      data.latest_key !== this.key ? h("p", { class: "alert" }, "This is an earlier look at the job. ", h("a", { href: address.link("/job", { key: data.latest_key }) }, "See the newest.")) : null,
      h("div", { class: "tiles" }, tile(whole(job.num_ranks), "ranks"), tile(whole(job.num_hosts), "hosts"), tile(seconds(this.medianStep()), "median step"),
        tile(this.steps.length ? whole(this.steps.length) : whole(job.num_steps), "steps seen"), tile(whole(job.num_findings), "open findings", job.num_findings ? "bad" : ""), tile(whole(job.lost_gpu_seconds), `GPU s lost${cost(job.lost_gpu_seconds, ", ")}`, job.lost_gpu_seconds ? "warn" : "")));
    this.breakdown = h("div", {});
    clear(this.parts.below,
      data.findings.length || job.source === "observed" || job.source === "watched" ? findingsCard(data.findings.map((f) => f.finding), this.go, { onchoose: (finding) => this.choose(finding) }) : null,
      h("div", { class: "grid" }, this.stepsCard(), this.timeline ? card("Where the time goes", this.breakdown, { about: "in the window shown" }) : null),
      data.emulation.world_size ? emulationCard(data.emulation) : null,
      data.ranks.length ? h("div", { class: "grid" }, stagesCard(data), groupsCard(data)) : null,
      data.notes.length ? card("Notes", h("ul", { class: "notes" }, data.notes.map((note) => h("li", {}, note)))) : null,
      !this.timeline ? card("Timeline", empty("No timeline of this job", job.source === "watched" ? "A watch keeps no spans; diagnose its flows to get them." : "Run diagnose with --output to write one.")) : null);
    if (this.timeline) this.drawBreakdown();
  }

  medianStep() {
    const lengths = this.steps.map((s) => (s.to_ns - s.from_ns) / 1e9).sort((a, b) => a - b);
    return lengths.length ? lengths[Math.floor(lengths.length / 2)] : this.data.job.step_s;
  }

  choose(finding) {
    const found = this.data.findings.find((f) => f.finding === finding);
    if (!this.timeline) return;
    this.timeline.show(finding.from_ns, finding.to_ns, found?.ranks || []);
    this.timeline.node.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  stepsCard() {
    if (!this.steps.length && !this.data.steps_known) return card("Step time", empty(this.data.job.step_s === null ? "Steps are not listed" : `${seconds(this.data.job.step_s)} is the median`, this.data.job.source === "watched" ? "A watch keeps the median alone; diagnose its flows to see every step." : "Its source lists no steps."));
    if (!this.steps.length) return card("Step time", empty("No step was recognised", "The job may be too short, or its traffic without rhythm."));
    const make = () => ({
      traces: [{ type: "scatter", mode: this.steps.length > 200 ? "lines" : "lines+markers", x: this.steps.map((s) => s.index), y: this.steps.map((s) => (s.to_ns - s.from_ns) / 1e9), line: { color: COLOURS.compute, width: 1.6 }, marker: { size: 5 },
        hovertemplate: "step %{x}: %{y:.4g} s<extra></extra>", name: "step time" }],
      layout: { xaxis: { title: "step", rangemode: "tozero" }, yaxis: { title: "seconds", rangemode: "tozero" }, showlegend: false, shapes: this.data.findings.map(({ finding }) => this.shade(finding)).filter(Boolean) },
    });
    const node = chart("Step time over steps", make, { onclick: (point) => { const step = this.steps[point.pointIndex]; this.timeline?.setWindow(step.from_ns, step.to_ns, { push: true }); } });
    return card("Step time", node, { about: this.timeline ? "shaded where findings lie; click a step to see it" : "" });
  }

  shade(finding) {
    const inside = this.steps.filter((s) => s.from_ns < finding.to_ns && s.to_ns > finding.from_ns);
    if (!inside.length || inside.length === this.steps.length) return null;
    return { type: "rect", xref: "x", yref: "paper", x0: inside[0].index - 0.5, x1: inside.at(-1).index + 0.5, y0: 0, y1: 1, fillcolor: colour("--bad"), opacity: 0.1, line: { width: 0 }, layer: "below" };
  }

  async drawBreakdown() {
    const { state } = this.timeline;
    let data;
    try { data = await load("breakdown", { key: this.key, from_ns: state.from, to_ns: state.to }); } catch (error) { clear(this.breakdown, h("p", { class: "note" }, error.message)); return; }
    const stage = new Map(this.data.ranks.map((r) => [r.rank, r.stage]));
    const staged = data.ranks.some((rank) => stage.get(rank) !== null && stage.get(rank) !== undefined);
    const groups = new Map();
    data.ranks.forEach((rank, i) => { const name = staged ? `stage ${stage.get(rank) ?? "?"}` : data.ranks.length > 32 ? `ranks ${Math.floor(rank / 8) * 8}–${Math.floor(rank / 8) * 8 + 7}` : `rank ${rank}`; if (!groups.has(name)) groups.set(name, []); groups.get(name).push(i); });
    const names = [...groups.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, 64);
    const span = state.from === null ? null : (state.to - state.from) / 1e9;
    const traces = data.kinds.map((kind, k) => ({ type: "bar", orientation: "h", name: kind, y: names, x: names.map((name) => { const members = groups.get(name); return members.reduce((sum, i) => sum + data.seconds[k][i], 0) / members.length; }), marker: { color: COLOURS[kind] }, hovertemplate: `${kind}: %{x:.4g} s<extra>%{y}</extra>` }));
    const make = () => ({ traces, layout: { barmode: "stack", xaxis: { title: "seconds, mean over ranks", rangemode: "tozero" }, yaxis: { autorange: "reversed", type: "category" }, margin: { l: 76, r: 10, t: 6, b: 40 } } });
    const node = chart("Where the time goes", make);
    node.style.height = `${Math.max(220, Math.min(560, 110 + 26 * names.length))}px`;
    clear(this.breakdown, node, span ? h("p", { class: "note" }, `of ${seconds(span)}; kinds of one rank may run at the same time, so that bars can be longer than that`) : null);
  }
}

function stagesCard(data) {
  const blamed = new Set(data.findings.flatMap((f) => f.ranks)), stages = new Map();
  for (const rank of data.ranks) { const name = rank.stage ?? "–"; if (!stages.has(name)) stages.set(name, []); stages.get(name).push(rank); }
  const names = [...stages.keys()].sort((a, b) => Number(a) - Number(b));
  return card("Stages", h("div", { class: "stages" }, names.slice(0, 64).map((name) => [h("b", {}, name === "–" ? "no stage" : `stage ${name}`),
    h("div", { class: "ranks" }, stages.get(name).slice(0, 128).map((rank) => h("span", { class: `rank ${blamed.has(rank.rank) ? "bad" : ""}`, title: `rank ${rank.rank}: ${rank.endpoint}${rank.host ? ` on ${rank.host}` : ""}` }, rank.rank)), stages.get(name).length > 128 ? `and ${stages.get(name).length - 128} more` : null)])),
  { about: `${plural(names.length, "stage")}; red is under suspicion` });
}

function groupsCard(data) {
  const built = table("groups", [
    { name: "kind", get: (g) => g.kind, show: (g) => [h("span", { class: "sw", style: { background: COLOURS[g.kind] || COLOURS.unknown, marginRight: "7px" } }), g.kind] },
    { name: "size", num: true, get: (g) => g.ranks.length }, { name: "ranks", wide: true, get: (g) => g.ranks.join(" "), show: (g) => h("span", { class: "mono" }, g.ranks.slice(0, 24).join(" "), g.ranks.length > 24 ? " …" : "") },
    { name: "sure", num: true, get: (g) => g.confidence, show: (g) => percent(g.confidence) },
  ], data.groups, { most: 8, caption: "Groups" });
  const kinds = new Map();
  for (const group of data.groups) kinds.set(group.kind, (kinds.get(group.kind) || 0) + 1);
  return card("Groups", data.groups.length ? built.node : empty("No group was recognised", ""), { about: [...kinds].map(([kind, count]) => `${whole(count)} ${kind}`).join(", ") + (data.groups_left_out ? `, ${whole(data.groups_left_out)} more left out` : ""), tools: data.groups.length ? built.tools : null });
}

function emulationCard(doc) {
  const split = Object.entries(doc.split || {}).map(([name, share]) => [words(name), percent(share, 1)]);
  const rows = [["iteration", `${number(doc.iteration_ms?.median)} ms median, ${number(doc.iteration_ms?.p95)} ms p95`], ["error band", `${number(doc.provenance?.error_band_pct)} %`], ...split, ["compute", doc.provenance?.compute], ["communication", doc.provenance?.communication], ["cluster", doc.provenance?.cluster], ["device", doc.provenance?.device]].filter(([, value]) => value);
  const classes = table("classes", [
    { name: "ranks", get: (c) => c.ranks?.length, show: (c) => `${plural(c.ranks?.length || 0, "rank")} from ${c.ranks?.[0] ?? "?"}` },
    { name: "allocated", num: true, get: (c) => c.peak_allocated_bytes, show: (c) => bytes(c.peak_allocated_bytes) }, { name: "reserved", num: true, get: (c) => c.peak_reserved_bytes, show: (c) => bytes(c.peak_reserved_bytes) },
    { name: "fits", get: (c) => c.fits, show: (c) => (c.fits === null || c.fits === undefined ? "–" : badge(c.fits ? "fits" : "too large", c.fits ? "good" : "bad")) },
  ], doc.classes || [], { caption: "Rank classes" });
  return h("div", { class: "grid" }, card("Prediction", h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]))), card("Peak memory of rank classes", classes.node, { tools: classes.tools }));
}

