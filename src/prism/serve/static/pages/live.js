// Live: the current state. With ?wall it fills a screen on a wall.
import * as address from "../address.js";
import { alertsCard } from "../alerts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, health, sparkline, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, clock, cost, number, percent, seconds, whole, words } from "../units.js";

const EVENTS = { told: "bad", updated: "warn", resolved: "good" };
const WORST = ["hung", "failed", "degraded", "unknown", "waiting", "ok", "done"];

export async function live() {
  const node = h("div", {});
  const draw = async () => {
    const [data, alerts] = await Promise.all([load("live"), load("alerts")]);
    const wall = address.get("wall", null) !== null;
    clear(node, head(wall), tiles(data.counts), jobsCard(data), feedCard(data), h("div", { class: "grid" }, risksCard(data.risks), queuesCard(data.queues)), wall ? null : alertsCard(alerts, draw));
  };
  await draw();
  return { node, refresh: draw };
}

function head(wall) {
  return h("div", { class: "head" }, h("h1", {}, "Live"), h("span", { class: "sub" }, `as of ${new Date().toISOString().slice(11, 19)} UTC`), h("span", { class: "grow" }),
    h("a", { class: "button", href: address.link("/live", wall ? {} : { wall: "1" }) }, wall ? "Leave the wall" : "Wall screen"));
}

function tiles(counts) {
  return h("div", { class: "tiles" }, tile(whole(counts.jobs), "jobs"), tile(counts.ranks ? whole(counts.ranks) : "–", "ranks seen"), tile(whole(counts.open_findings), "open findings", counts.open_findings ? "bad" : ""),
    tile(whole(counts.lost_gpu_seconds), `GPU s lost to them${cost(counts.lost_gpu_seconds, ", ")}`, counts.lost_gpu_seconds ? "warn" : ""), tile(whole(counts.suspects), "hosts under suspicion", counts.cordoned ? "bad" : counts.suspects ? "warn" : ""));
}

function jobsCard({ jobs, jobs_left_out }) {
  if (!jobs.length) return card("Jobs", empty("No job is known yet", "A watch, a diagnosis or a supervised run below this folder appears here."));
  const ordered = [...jobs].sort((a, b) => WORST.indexOf(a.health) - WORST.indexOf(b.health) || a.id.localeCompare(b.id));
  const row = (job) => h("li", { class: `ribbon ${job.health}` }, health(job.health, job.health_text),
    h("a", { href: job.source === "supervised" ? address.link("/failures", { run: job.key }) : address.link("/job", { key: job.key }) }, job.id),
    h("span", { class: "note" }, job.state === "unknown" ? "" : job.state, job.stale ? [" ", badge("stale", "warn")] : null), sparkline(job.trend_s, { width: 260, height: 30 }),
    h("span", { class: "num" }, job.step_s === null ? "– a step" : `${seconds(job.step_s)} a step`), h("span", { class: "note" }, `as of ${ago(job.looked_until_ns)}`));
  return card("Jobs", h("ul", { class: "ribbons" }, ordered.slice(0, 60).map(row)), { about: `worst first; the ribbon is the time of the last steps${jobs_left_out + Math.max(0, jobs.length - 60) ? `; ${whole(jobs_left_out + Math.max(0, jobs.length - 60))} more are on the Cluster page` : ""}` });
}

const moment = (event) => {
  const from = BigInt(event.start_ns), to = BigInt(event.end_ns), margin = (to - from) / 10n > 1000n ? (to - from) / 10n : 1000n;
  return address.link("/job", { key: event.job_key, from: String(from - margin), to: String(to + margin) });
};

function feedCard({ events, num_events }) {
  if (!events.length) return card("Findings feed", empty("No finding has been reported yet", "A watch that prints into this folder is followed line by line.", "prism watch SOURCE --state out/watch > out/watch/findings.jsonl"));
  const row = (event) => h("li", { class: event.event === "resolved" ? "good" : event.event === "told" ? "bad" : "warning" }, h("time", { title: clock(event.reported_ns, { date: true }) }, ago(event.reported_ns)), badge(event.event, EVENTS[event.event]), " ",
    h("b", {}, words(event.kind)), ` ${event.culprit_type} ${event.culprit} in `, h("a", { href: moment(event) }, event.job), h("p", {}, `${whole(event.lost_gpu_seconds)} GPU s; ${event.evidence}`));
  return card("Findings feed", h("ol", { class: "story feed", tabindex: 0, "aria-label": "Findings as they were told, newest first" }, events.map(row)), { about: num_events > events.length ? `the newest ${whole(events.length)} of ${whole(num_events)}; /api/feed pages through all` : "newest first; the job leads to the seconds in question" });
}

function risksCard(risks) {
  if (!risks.length) return card("At risk", empty("No prediction is here", "", "prism predict events.parquet --at 2026-10-01 --json > out/risks.json"));
  const built = table("live-risks", [{ name: "part", get: (r) => r.id, cut: true, show: (r) => h("a", { href: address.link("/reports", { path: r.path }) }, r.id) }, { name: "risk", num: true, get: (r) => r.risk, show: (r) => percent(r.risk, 2) }, { name: "why", wide: true, get: (r) => r.reasons.join("; ") }], risks, { caption: "At risk", search: false });
  return card("At risk", built.node, { about: "by the newest prediction" });
}

function queuesCard(queues) {
  if (!queues.length) return card("Queues", empty("No placement is here", "", "prism place simulate jobs.csv --clusters clusters.yaml --json > out/place.json"));
  const built = table("live-queues", [{ name: "policy", get: (q) => q.policy, show: (q) => h("a", { href: address.link("/reports", { path: q.path }) }, q.policy) }, { name: "mean wait", num: true, get: (q) => q.mean_queue_s, show: (q) => seconds(q.mean_queue_s) }, { name: "p99 wait", num: true, get: (q) => q.p99_queue_s, show: (q) => (q.p99_queue_s === null ? "–" : seconds(q.p99_queue_s)) }], queues, { caption: "Queues", search: false });
  return card("Queues", built.node, { about: "by the newest placement" });
}
