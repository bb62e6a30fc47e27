// The front page: what is sick now, worst first, one sentence and one action each; then jobs, what was, and who would know.
import * as address from "../address.js";
import { alertsCard } from "../alerts.js";
import { load, write } from "../data.js";
import { badge, card, clear, empty, h, health, sparkline, tile } from "../dom.js";
import { range, rangeOf } from "../range.js";
import { table } from "../table.js";
import { ago, clock, cost, number, percent, plural, seconds, whole, words } from "../units.js";

export const STATE = { open: ["open", "bad"], lost: ["lost sight of", "warn"], resolved: ["resolved", "good"], expired: ["expired", ""] };
const URGENT = { page: ["now", "bad"], ticket: ["soon", "warn"], info: ["note", "info"] };
const WORST = ["hung", "failed", "degraded", "unknown", "waiting", "ok", "done"];
const FRESH_S = 600, PAST = 50;

const ageOf = (ns) => Date.now() / 1000 - Number(BigInt(ns) / 1_000_000_000n);
// What stands still goes on costing after it was counted.
export const lostNow = (one) => one.lost_gpu_s + (one.grows ? one.gpus_lost * Math.max(0, ageOf(one.counted_ns)) : 0);
export const stateBadge = (one) => badge(one.acknowledged_by && one.state === "open" ? `taken up by ${one.acknowledged_by}` : STATE[one.state]?.[0] || `${one.state} (unknown)`, one.acknowledged_by && one.state === "open" ? "info" : STATE[one.state]?.[1], one.why_state);
export const act = (id, what) => write("/api/incidents", "POST", { id, what });
export const sayLost = (one) => (one.gpus_lost || one.lost_gpu_s ? `${number(lostNow(one) / 3600)} GPU-hours so far${cost(lostNow(one), ", ")}, ${number(one.gpus_lost)} each hour` : "no cost known");

export async function now() {
  const node = h("div", {}), said = h("p", { class: "note", role: "status" });
  let chosen = 0, shown = [];
  const rows = () => [...node.querySelectorAll(".sick > li")];
  const choose = (place) => { chosen = Math.max(0, Math.min(shown.length - 1, place)); rows()[chosen]?.focus(); };
  const take = async (one) => { try { await act(one.id, "acknowledged"); said.textContent = `${one.id} is taken up`; } catch (error) { said.textContent = error.message; } };
  const draw = async () => {
    const asked = { q: address.get("q"), offset: address.get("offset"), limit: PAST, ...rangeOf() };
    const [data, jobs, alerts] = await Promise.all([load("incidents", asked), load("jobs", { limit: 2000 }), load("alerts")]);
    const wall = address.get("wall", null) !== null, active = document.activeElement?.closest?.(".sick > li")?.dataset.id;
    shown = data.now;
    clear(node, head(wall, draw), data.trouble ? h("p", { class: "alert", role: "alert" }, data.trouble) : null, bill(data), said, sickList(data, take, wall), jobsCard(jobs.jobs), wall ? null : [pastCard(data, asked), sourcesCard(data.sources), alertsCard(alerts)]);
    if (active) node.querySelector(`.sick > li[data-id="${CSS.escape(active)}"]`)?.focus({ preventScroll: true });
  };
  await draw();
  const key = (event) => {
    const at = rows().indexOf(document.activeElement?.closest?.(".sick > li"));
    if (at >= 0) chosen = at;
    if (event.key === "j") { choose(at < 0 ? 0 : chosen + 1); return true; }
    if (event.key === "k") { choose(chosen - 1); return true; }
    if (!shown.length) return false;
    if (event.key === "a") { take(at >= 0 ? shown[at] : shown.find((one) => !one.acknowledged_by) || shown[0]); return true; }
    if (event.key === "o") { location.assign(address.link("/incident", { id: shown[chosen].id })); return true; }
    return false;
  };
  return { node, refresh: draw, key };
}

function head(wall, draw) {
  const search = h("form", { class: "chips", role: "search", onsubmit: (event) => { event.preventDefault(); address.set({ q: new FormData(event.target).get("q"), offset: "" }, { push: true }); draw(); } },
    h("input", { type: "search", name: "q", "aria-label": "Search incidents", placeholder: "Host, job, kind, word", value: address.get("q") }), h("button", {}, "Search"));
  return h("div", { class: "head" }, h("h1", {}, "Now"), h("span", { class: "sub" }, `as of ${clock(BigInt(Date.now()) * 1_000_000n)}`), h("span", { class: "grow" }), wall ? null : search,
    h("a", { class: "button", href: address.link("/", wall ? {} : { wall: "1" }) }, wall ? "Leave the wall" : "Wall screen"));
}

// The one line that must be true at the worst moment: "nothing" is said only where somebody looks.
function bill(data) {
  const open = data.now.filter((one) => one.state === "open"), lost = data.now.length - open.length, rate = data.now.reduce((sum, one) => sum + one.badness, 0);
  const looking = data.sources.filter((s) => s.state === "ok" && ["watch", "supervise"].includes(s.tool) && ageOf(s.written_ns) < FRESH_S), newest = data.sources.filter((s) => s.state === "ok")[0];
  const searched = address.get("q") ? " that the search finds" : "";
  if (data.now.length) return h("div", { class: "tiles" }, tile(whole(open.length), `open${searched}`, open.length ? "bad" : ""), tile(whole(lost), "lost sight of", lost ? "warn" : ""), tile(number(rate), `GPU-hours lost each hour, by how sure${cost(rate * 3600, ", ")}`, rate ? "bad" : ""), tile(whole(data.now.filter((one) => !one.acknowledged_by).length), "nobody has taken up", "warn"));
  if (searched) return h("p", { class: "verdict" }, `Nothing${searched} is sick now.`);
  if (looking.length) return h("p", { class: "verdict good" }, badge("nothing is known to be sick", "good"), ` ${plural(looking.length, "source")} looking, the last written ${ago(looking[0].written_ns)}.`);
  return h("p", { class: "verdict doubt" }, badge("nobody is looking", "warn"), newest ? ` The newest of ${plural(data.sources.length, "source")} was written ${ago(newest.written_ns)}: what is sick now is not known.` : " No source in this folder tells of jobs: what is sick is not known. Start ", newest ? null : h("code", {}, "prism watch SOURCE --state out/watch"));
}

function sickList(data, take, wall) {
  if (!data.now.length) return null;
  const row = (one) => h("li", { class: `${one.severity} ${one.state}`, tabindex: 0, "data-id": one.id, "aria-label": one.title },
    h("div", { class: "what" }, badge(...(URGENT[one.severity] || [one.severity])), stateBadge(one), h("a", { href: address.link("/incident", { id: one.id }) }, h("b", {}, one.title))),
    h("p", { class: "do" }, h("span", {}, "Do: "), one.action),
    h("p", { class: "facts-line" }, [one.cause, one.hosts.length ? `host ${one.hosts.slice(0, 4).join(", ")}${one.hosts.length > 4 ? ` and ${one.hosts.length - 4} more` : ""}` : "", `since ${ago(one.since_ns)}`, `seen until ${ago(one.until_ns)}`, sayLost(one), `${percent(one.confidence)} sure`, one.state === "lost" ? one.why_state : ""].filter(Boolean).join(" · ")),
    wall || one.acknowledged_by ? null : h("button", { disabled: !data.writable, title: data.writable ? "Take it up (A)" : "The service was started without --state", "aria-label": `Take up ${one.title}`, onclick: () => take(one) }, "Take up"));
  return card("Sick now", h("ol", { class: "sick" }, data.now.map(row)), { about: "worst first: GPU-hours lost in an hour, times how sure. J K move, A takes up, O opens" });
}

function jobsCard(jobs) {
  const real = jobs.filter((job) => !["emulation", "simulation", "scenario"].includes(job.source));
  if (!real.length) return card("Jobs", empty("No job is known yet", "A watch, a diagnosis or a supervised run below this folder appears here."));
  const ordered = [...real].sort((a, b) => WORST.indexOf(a.health) - WORST.indexOf(b.health) || a.id.localeCompare(b.id));
  const row = (job) => h("li", { class: `ribbon ${isOld(job) ? "unknown" : job.health}` }, health(isOld(job) ? "unknown" : job.health, job.health_text),
    h("a", { href: job.source === "supervised" ? address.link("/failures", { run: job.key }) : address.link("/job", { key: job.key }) }, job.id),
    h("span", { class: "note" }, sayState(job)), h("span", { class: "trend" }, sparkline(job.trend_s, { width: 260, height: 30 })),
    h("span", { class: "num" }, job.step_s === null ? "– a step" : `${seconds(job.step_s)} a step`), h("span", { class: "note" }, `as of ${ago(job.looked_until_ns)}`));
  return card("Jobs", h("ul", { class: "ribbons" }, ordered.slice(0, 60).map(row)), { about: `worst first; the ribbon is the time of the last steps${real.length > 60 ? `; ${whole(real.length - 60)} more are on the Cluster page` : ""}` });
}

// A job that was running when it was last seen, long ago, is not said to run.
const isOld = (job) => job.stale || (BigInt(job.looked_until_ns) > 946684800n * 1_000_000_000n && ageOf(job.looked_until_ns) > FRESH_S && ["running", "unknown"].includes(job.state) && ["ok", "degraded", "hung", "waiting"].includes(job.health));
export const sayState = (job) => (isOld(job) ? (job.state === "running" ? "was running when last seen" : "not seen since") : job.state === "unknown" ? "" : job.state);

function pastCard(data, asked) {
  const built = table("past", [
    { name: "state", get: (one) => one.state, show: (one) => stateBadge(one) },
    { name: "what", wide: true, get: (one) => one.title, show: (one) => h("a", { href: address.link("/incident", { id: one.id }) }, one.title) },
    { name: "why it is over", wide: true, fold: 2, get: (one) => one.why_state },
    { name: "since", get: (one) => one.since_ns, show: (one) => clock(one.since_ns, { date: true }) },
    { name: "GPU-hours", num: true, get: (one) => one.lost_gpu_s / 3600, show: (one) => number(one.lost_gpu_s / 3600) },
    cost(1) ? { name: "cost", num: true, fold: 1, get: (one) => cost(one.lost_gpu_s) } : null,
  ].filter(Boolean), data.past, { caption: "What was", search: false });
  const offset = Number(asked.offset) || 0, page = (to, text) => h("a", { class: "button", href: address.link("/", { ...Object.fromEntries(new URLSearchParams(location.search)), offset: to || "" }) }, text);
  return card("What was", h("div", {}, range(), data.past.length ? built.node : h("p", { class: "note" }, "No incident of the past is in this range."),
    h("div", { class: "more" }, offset ? page(Math.max(0, offset - PAST), "Newer") : null, data.total > offset + PAST ? page(offset + PAST, "Older") : null)), { about: data.total ? `${whole(offset + 1)} to ${whole(Math.min(data.total, offset + PAST))} of ${plural(data.total, "incident")}` : "", tools: built.tools });
}

function sourcesCard(sources) {
  if (!sources.length) return null;
  const tone = { ok: "good", late: "bad", damaged: "bad", gone: "warn", ended: "" };
  const built = table("sources", [
    { name: "state", get: (s) => s.state, show: (s) => badge(s.state === "ok" && ageOf(s.written_ns) > FRESH_S ? "old" : s.state, s.state === "ok" && ageOf(s.written_ns) > FRESH_S ? "" : tone[s.state]) }, { name: "source", wide: true, get: (s) => s.path },
    { name: "of", get: (s) => words(s.tool) }, { name: "written", get: (s) => s.written_ns, show: (s) => h("span", { title: clock(s.written_ns, { date: true }) }, ago(s.written_ns)) }, { name: "said", wide: true, get: (s) => s.message },
  ], sources, { caption: "Who would know", most: 12 });
  return card("Who would know", built.node, { about: "what incidents are read from, and how old it is", tools: built.tools });
}
