// Evaluation: progress, scores over steps, and trials on GPUs as a Gantt chart.
import * as address from "../address.js";
import { COLOURS, SERIES, chart } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, tile } from "../dom.js";
import { table } from "../table.js";
import { Timeline } from "../timeline.js";
import { ago, number, percent, plural, seconds, whole } from "../units.js";

const MOST_CHARTS = 12;
const STATE = { running: "info", done: "good", failed: "bad", waiting: "" };

export async function evaluation({ go }) {
  const { evaluations } = await load("evaluations");
  const key = address.get("key") || evaluations[0]?.key;
  if (!key) return { node: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Evaluation")), card("Evaluations", empty("No evaluation is known", "Evaluate checkpoints with the output below this folder.", "prism evaluate plan.yaml --output evaluation/"))) };
  const page = new EvaluationPage(key, evaluations, go);
  await page.load();
  return { node: page.node, start: () => page.timeline?.start(), close: () => page.timeline?.stop(), refresh: () => page.refresh(), repaint: () => page.timeline?.draw(), key: (event) => page.timeline?.onKey(event) };
}

class EvaluationPage {
  constructor(key, evaluations, go) { this.key = key; this.evaluations = evaluations; this.go = go; this.node = h("div", {}); this.top = h("div", {}); this.below = h("div", {}); }

  async load() {
    this.data = await load("evaluation", { key: this.key });
    if (this.data.num_workers) {
      const from = address.get("from"), to = address.get("to"), origin = BigInt(this.data.origin_ns);
      this.timeline = new Timeline({
        key: this.key, lanes: false, state: { from: from ? Number(BigInt(from) - origin) : null, to: to ? Number(BigInt(to) - origin) : null },
        onchange: (state, push) => address.set({ from: (origin + BigInt(state.from)).toString(), to: (origin + BigInt(state.to)).toString() }, { push }),
      });
    }
    this.draw();
    clear(this.node, this.top, this.timeline ? card(this.data.progress.gpus === 0 ? "Trials on CPUs" : "Trials on GPUs", this.timeline.node, { about: `${plural(this.data.num_workers, "worker")}; a bar is a phase of a trial` }) : null, this.below);
  }

  async refresh() {
    const had = Boolean(this.timeline);
    this.data = await load("evaluation", { key: this.key });
    if (!had && this.data.num_workers) { await this.load(); this.timeline.start(); return; }
    this.timeline?.refresh();
    this.draw();
  }

  draw() {
    const { data } = this, { progress, evaluation } = data;
    const total = progress.done + progress.running + progress.waiting + progress.failed;
    const parts = progress.samples ? [[progress.scored, "var(--good)"]] : [[progress.done, "var(--good)"], [progress.failed, "var(--bad)"], [progress.running, "var(--accent)"]], all = progress.samples || total;
    const choose = this.evaluations.length > 1 ? h("select", { "aria-label": "Evaluation", onchange: (event) => this.go("/evaluation", { key: event.target.value }) }, this.evaluations.map((e) => h("option", { value: e.key, selected: e.key === this.key }, e.place))) : null;
    clear(this.top,
      h("div", { class: "head" }, h("h1", {}, "Evaluation"), badge(progress.state, STATE[progress.state]), evaluation.stale ? badge("stale", "warn", "it says that it runs and has written nothing for long") : null, h("span", { class: "sub" }, `${evaluation.place}, changed ${ago(evaluation.updated_ns)}`), h("span", { class: "grow" }), choose),
      h("div", { class: "tiles" }, tile(progress.state === "done" ? "done" : seconds(progress.time_left_s), progress.state === "done" ? "nothing left" : "left, as expected"), progress.samples ? tile(percent(progress.scored / progress.samples), `of ${whole(progress.samples)} samples scored`) : null, tile(progress.samples ? whole(progress.done) : `${whole(progress.done)} / ${whole(total)}`, "trials done"), tile(whole(progress.running), "running"), tile(whole(progress.waiting), "waiting"),
        tile(whole(progress.failed), "failed", progress.failed ? "bad" : ""), progress.gpus === 0 ? null : tile(progress.gpus === null ? "–" : `${whole(progress.gpus_busy)} / ${whole(progress.gpus)}`, "GPUs busy"), data.makespan_s === null ? null : tile(seconds(data.makespan_s), data.lower_bound_s ? `makespan, ${number(data.makespan_s / data.lower_bound_s)} x the bound` : "makespan")),
      all ? h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": all, "aria-valuenow": parts[0][0], "aria-label": "Trials", style: { marginBottom: "16px" } },
        parts.map(([count, paint]) => h("i", { style: { width: `${(100 * count) / all}%`, background: paint } }))) : null,
      data.broken ? h("p", { class: "alert" }, `Not all of its files can be read: ${data.broken}`) : null,
      data.regressions.length ? h("div", { class: "alert" }, h("b", {}, plural(data.regressions.length, "regression")), h("ul", { class: "notes" }, data.regressions.slice(0, 20).map((line) => h("li", {}, line)))) : null);
    clear(this.below, h("div", { class: "grid" }, this.curvesCard(), this.phasesCard()), this.scoresCard());
  }

  curvesCard() {
    const { scores } = this.data;
    if (!scores.length) return card("Leaderboard over steps", empty("No score yet", "Scores appear as trials end."));
    const metrics = Map.groupBy(scores, (score) => score.metric), series = new Set(scores.map((s) => `${s.dataset} ${s.metric}`)).size;
    const stepped = scores.some((s) => s.step !== null), single = metrics.size === 1;
    // A perplexity and an accuracy on one axis would show one of them as a flat line.
    const charts = [...metrics].slice(0, MOST_CHARTS).map(([metric, own]) => chart(single ? "Scores over steps" : `${metric} over steps`, () => ({
      traces: [...Map.groupBy(own, (s) => s.dataset)].slice(0, 40).map(([dataset, line], i) => {
        const name = `${dataset} ${metric}`;
        return { type: "scatter", mode: "lines+markers", name, x: line.map((s) => (stepped ? s.step : s.checkpoint)), y: line.map((s) => s.value), line: { color: SERIES[i % SERIES.length], width: 1.8 }, marker: { size: 6 }, hovertemplate: `${name.replaceAll("<", "‹")}: %{y:.4g}<extra>%{x}</extra>` };
      }),
      layout: { xaxis: { title: stepped ? "step" : "checkpoint" }, yaxis: { title: single ? "score" : metric } },
    }), { size: single ? "tall" : "" }));
    const more = metrics.size > MOST_CHARTS ? h("p", { class: "note" }, `${plural(metrics.size - MOST_CHARTS, "more metric")} in the table`) : null;
    return card("Leaderboard over steps", h("div", {}, charts, more), { about: plural(series, "metric") });
  }

  phasesCard() {
    const { phases } = this.data;
    if (!phases.length) return card("What phases cost", empty("No phase has ended yet", ""));
    const total = phases.reduce((sum, phase) => sum + phase.total_s, 0);
    const built = table("phases", [
      { name: "phase", get: (p) => p.phase, show: (p) => [h("span", { class: "sw", style: { background: COLOURS[p.phase] || COLOURS.other, marginRight: "7px" } }), p.phase] }, { name: "count", num: true, get: (p) => p.count, show: (p) => whole(p.count) },
      { name: "median", num: true, get: (p) => p.median_s, show: (p) => seconds(p.median_s) }, { name: "in all", num: true, get: (p) => p.total_s, show: (p) => seconds(p.total_s) }, { name: "share", num: true, get: (p) => p.total_s / total, show: (p) => percent(p.total_s / total) },
    ], phases, { caption: "Phases" });
    return card("What phases cost", built.node, { tools: built.tools, about: "worker time" });
  }

  scoresCard() {
    const { scores, scores_left_out } = this.data;
    if (!scores.length) return null;
    const built = table("leaderboard", [
      { name: "checkpoint", get: (s) => s.checkpoint, cut: true, show: (s) => h("span", { class: "mono" }, s.checkpoint) }, { name: "step", num: true, get: (s) => s.step, show: (s) => whole(s.step) }, { name: "dataset", get: (s) => s.dataset, cut: true }, { name: "metric", get: (s) => s.metric },
      { name: "value", num: true, get: (s) => s.value, show: (s) => number(s.value, 4) },
      { name: "change", num: true, get: (s) => s.change, show: (s) => (s.change === null ? "–" : h("span", { style: { color: s.better === null ? "" : s.better ? "var(--good)" : "var(--bad)" }, title: s.better === null ? "" : s.better ? "better" : "worse" }, `${s.change > 0 ? "+" : ""}${number(s.change, 4)}${s.better === null ? "" : s.better ? " ▲" : " ▼"}`)), title: "against the checkpoint before; ▲ is better, ▼ is worse" },
    ], scores, { most: 24, sort: ["step", true], caption: "Leaderboard" });
    return card("Leaderboard", built.node, { tools: built.tools, about: scores_left_out ? `${whole(scores_left_out)} more in leaderboard.csv` : plural(scores.length, "score") });
  }
}
