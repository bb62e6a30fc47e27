// Failures: verdicts with their evidence in context, hosts with their history, supervised runs as stories with the loss curve.
import * as address from "../address.js";
import { SERIES, chart, colour } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, health, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, percent, plural, seconds, whole, words } from "../units.js";

const ACTION = { restart: "info", isolate_and_restart: "warn", rollback: "info", stop: "bad" };
const MARKS = { saved: ["circle", "checkpoint", "--good"], restored: ["triangle-up", "continued", "--accent"], save_failed: ["x", "save failed", "--bad"], broken: ["x", "checkpoint damaged", "--bad"], failure: ["x-thin", "attempt ended", "--bad"], rollback: ["triangle-left", "rolled back", "--warn"] };

export async function failures() {
  const page = new FailuresPage();
  await page.load();
  return { node: page.node, refresh: () => page.load() };
}

class FailuresPage {
  constructor() { this.node = h("div", {}); }

  async load() {
    this.data = await load("failures");
    const { verdicts, runs, hosts } = this.data;
    this.detail = h("div", {}); this.runNode = h("div", {});
    this.verdict = address.get("verdict") || verdicts[0]?.id;
    this.run = address.get("run") || (runs.find((run) => run.num_failures || run.num_rollbacks) || runs[0])?.key;
    const head = h("div", { class: "head" }, h("h1", {}, "Failures"), h("span", { class: "sub" }, "why jobs failed, and what was done about it"));
    if (!verdicts.length && !runs.length && !hosts.length) {
      clear(this.node, head, card("Verdicts", empty("No failure is known", "Explain a failed job's logs into a file below this folder, or supervise a run there.", "prism explain logs/ --json > verdicts.jsonl")));
      return;
    }
    const byCategory = (name) => verdicts.filter((v) => v.category === name).length;
    clear(this.node, head,
      h("div", { class: "tiles" }, tile(whole(verdicts.length), "verdicts"), tile(whole(byCategory("infrastructure")), "of infrastructure"), tile(whole(byCategory("framework") + byCategory("script")), "of the program"),
        tile(whole(runs.length), "supervised runs"), tile(whole(runs.reduce((sum, run) => sum + run.num_failures, 0)), "failures met"), tile(whole(hosts.filter((host) => host.cordoned).length), "hosts out of use", hosts.some((host) => host.cordoned) ? "bad" : "")),
      this.verdictsCard(), this.detail, this.runsCard(), this.runNode, this.hostsCard());
    await Promise.all([this.showVerdict(this.verdict), this.showRun(this.run)]);
  }

  verdictsCard() {
    const { verdicts } = this.data;
    if (!verdicts.length) return card("Verdicts", empty("No verdict yet", "", "prism explain logs/ --json > verdicts.jsonl"));
    this.verdictTable = table("verdicts", [
      { name: "reason", get: (v) => v.reason, show: (v) => h("b", { style: { fontWeight: 580 }, title: v.cause }, v.reason) }, { name: "category", get: (v) => v.category, show: (v) => badge(v.category) },
      { name: "do", get: (v) => words(v.action), show: (v) => badge(words(v.action), ACTION[v.action]) }, { name: "sure", num: true, get: (v) => v.confidence, show: (v) => percent(v.confidence) },
      { name: "log", get: (v) => v.log, cut: true, show: (v) => shorten(v.log) }, { name: "hosts", get: (v) => v.hosts.join(" "), cut: true, show: (v) => v.hosts.join(", ") || "–" }, { name: "first rank", num: true, get: (v) => v.first_rank },
      { name: "evidence", wide: true, get: (v) => v.evidence, show: (v) => h("span", { class: "mono" }, v.evidence.length > 160 ? `${v.evidence.slice(0, 160)}…` : v.evidence) },
    ], verdicts, { caption: "Verdicts", most: 20, chosen: (v) => v.id === this.verdict, go: (v) => () => { address.set({ verdict: v.id }, { push: true }); this.showVerdict(v.id, true); } });
    return card("Verdicts", this.verdictTable.node, { about: "choose one to see its evidence in place", tools: this.verdictTable.tools });
  }

  async showVerdict(id, scroll = false) {
    if (!id) return;
    this.verdict = id;
    this.verdictTable?.draw();
    let found;
    try { found = await load("verdict", { id }); } catch (error) { clear(this.detail, card("Evidence", empty("This verdict is gone", error.message))); return; }
    const { verdict, context } = found;
    const facts = [["cause", verdict.cause], ["do", [badge(words(verdict.action), ACTION[verdict.action]), " ", verdict.mitigation]], ["read", `${plural(verdict.lines_read, "line")}, ${whole(verdict.lines_kept)} worth reading`], ["where", [verdict.first_rank !== null ? `rank ${verdict.first_rank}` : "", verdict.hosts.join(", ")].filter(Boolean).join(" on ")], ["from", verdict.origin], ["log", verdict.log]];
    clear(this.detail, card(`${verdict.reason} in ${shorten(verdict.log)}`, h("div", {}, h("dl", { class: "facts" }, facts.filter(([, value]) => value && value.length).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), context.map(logOf)), { about: `${verdict.category}, ${percent(verdict.confidence)} sure` }));
    if (scroll) this.detail.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  runsCard() {
    const { runs } = this.data;
    if (!runs.length) return card("Supervised runs", empty("No run is supervised", "", "prism supervise --run-dir runs/mine -- torchrun train.py"));
    const built = this.runTable = table("runs", [
      { name: "run", get: (r) => r.place, cut: true }, { name: "health", get: (r) => r.health, show: (r) => health(r.health) }, { name: "state", wide: true, get: (r) => r.state },
      { name: "attempt", num: true, get: (r) => r.attempt }, { name: "step", num: true, get: (r) => r.step, show: (r) => whole(r.step) }, { name: "last good", num: true, get: (r) => r.last_good_step, show: (r) => whole(r.last_good_step) },
      { name: "failures", num: true, get: (r) => r.num_failures }, { name: "rollbacks", num: true, get: (r) => r.num_rollbacks }, { name: "left out", get: (r) => r.skipped.join(" "), show: (r) => r.skipped.join(", ") || "–", title: "batches" },
      { name: "changed", num: true, get: (r) => Number(r.updated_ns), show: (r) => ago(r.updated_ns) },
    ], runs, { caption: "Supervised runs", most: 20, chosen: (r) => r.key === this.run, go: (r) => () => { address.set({ run: r.key }, { push: true }); this.showRun(r.key, true); } });
    return card("Supervised runs", built.node, { tools: built.tools, about: "choose one for its story" });
  }

  async showRun(key, scroll = false) {
    if (!key) return;
    this.run = key;
    this.runTable?.draw();
    let data;
    try { data = await load("run", { key }); } catch (error) { clear(this.runNode, card("Run", empty("This run is gone", error.message))); return; }
    clear(this.runNode, h("div", { class: "grid" }, lossCard(data), storyCard(data), investigationsCard(data)));
    if (scroll) this.runNode.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  hostsCard() {
    const { hosts } = this.data;
    if (!hosts.length) return card("Hosts", empty("Nothing is held against any host", "Strikes, cordons and findings appear here."));
    const built = table("hosts", [
      { name: "host", get: (host) => host.host, cut: true }, { name: "state", get: (host) => (host.cordoned ? "cordoned" : "in use"), show: (host) => badge(host.cordoned ? "cordoned" : "in use", host.cordoned ? "bad" : "") },
      { name: "failures", num: true, get: (host) => host.num_failures }, { name: "strikes", num: true, get: (host) => host.num_strikes }, { name: "cordons", num: true, get: (host) => host.num_cordons }, { name: "findings", num: true, get: (host) => host.num_findings },
      { name: "history", wide: true, get: (host) => host.reasons.join("; "), show: (host) => host.reasons.slice(0, 4).map((reason) => h("div", {}, words(reason))) },
    ], hosts, { caption: "Hosts" });
    return card("Hosts and their history", built.node, { tools: built.tools });
  }
}

// The end of a long path distinguishes the logs.
const shorten = (path) => (path.split("/").length > 4 ? `…/${path.split("/").slice(-3).join("/")}` : path);

function logOf(context) {
  const lines = [];
  let before = null;
  for (const line of context.lines) {
    if (before !== null && line.line > before + 1) lines.push(h("div", { class: "gap" }, h("span", {}, "⋯"), h("span", {}, "")));
    lines.push(h("div", { class: line.cited ? "cited" : "" }, h("span", {}, line.line), h("span", {}, line.text)));
    before = line.line;
  }
  return h("div", { class: "log", tabindex: 0, "aria-label": "Log lines" }, h("h3", {}, context.file || "cited lines; the log itself is not in this folder"), lines);
}

function lossCard({ run, losses, marks, losses_left_out }) {
  if (!losses.length) return card("Loss", empty("No loss was reported", "A trainer that reports its progress shows it here."));
  const attempts = [...new Set(losses.map((p) => p.attempt))];
  const at = (mark) => { const near = losses.filter((p) => p.attempt === mark.attempt && p.loss !== null); if (!near.length) return null; return near.reduce((best, p) => (Math.abs(p.step - mark.step) < Math.abs(best.step - mark.step) ? p : best)).loss; };
  const make = () => ({
    traces: [
      ...attempts.map((attempt, i) => { const own = losses.filter((p) => p.attempt === attempt); return { type: "scatter", mode: "lines", name: `attempt ${attempt}`, x: own.map((p) => p.step), y: own.map((p) => p.loss), line: { color: SERIES[i % SERIES.length], width: 1.6 }, hovertemplate: "step %{x}: %{y:.5g}<extra>attempt " + attempt + "</extra>" }; }),
      ...Object.entries(MARKS).map(([kind, [symbol, name, tone]]) => { const own = marks.filter((m) => m.kind === kind && at(m) !== null); return own.length ? { type: "scatter", mode: "markers", name, x: own.map((m) => m.step), y: own.map(at), text: own.map((m) => m.text), marker: { symbol, size: kind === "failure" ? 11 : 9, color: colour(tone), line: { width: kind === "failure" ? 2.5 : 1, color: kind === "failure" ? colour(tone) : colour("--card") } }, hovertemplate: "%{text}<extra></extra>" } : null; }).filter(Boolean),
    ],
    layout: { xaxis: { title: "step" }, yaxis: { title: "loss" }, shapes: marks.filter((m) => m.kind === "rollback").map((m) => ({ type: "line", x0: m.step, x1: m.step, yref: "paper", y0: 0, y1: 1, line: { color: colour("--warn"), dash: "dot", width: 1.5 } })) },
  });
  const bad = losses.filter((p) => p.loss === null).length;
  return card("Loss, checkpoints and rollbacks", h("div", {}, chart("Loss over steps", make, { size: "tall" }), h("p", { class: "note" }, [bad ? `${plural(bad, "loss was", "losses were")} not a number` : "", losses_left_out ? `${whole(losses_left_out)} points are thinned out` : ""].filter(Boolean).join("; "))), { about: run.place });
}

function investigationsCard({ run, investigations }) {
  if (!investigations.length) return null;
  const one = (found) => h("li", {}, h("a", { href: address.link("/reports", { path: found.path }) }, `attempt ${found.attempt}`), `: ${found.line}`);
  return card("Investigations", h("ul", { class: "notes" }, investigations.map(one)), { about: run.place });
}

function storyCard({ run, story }) {
  if (!story.length) return card("The supervisor's decisions", empty("Nothing was decided yet", ""));
  const start = story[0].time_s;
  return card("The supervisor's decisions", h("ol", { class: "story" }, story.slice(-200).map((chapter) => h("li", { class: chapter.tone }, h("time", { title: new Date(chapter.time_s * 1000).toISOString() }, chapter.time_s === start ? `${new Date(start * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : `+${seconds(chapter.time_s - start)}`), h("b", {}, chapter.title),
    chapter.details.map((line) => h("p", {}, line)), chapter.verdict_id ? h("p", {}, h("a", { href: address.link("/failures", { verdict: chapter.verdict_id, run: run.key }) }, "its evidence")) : null))), { about: run.place });
}

