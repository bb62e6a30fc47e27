// History: past jobs and days, two of them side by side; a search; remarks; and the page of one host.
import * as address from "../address.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, sparkline, tile } from "../dom.js";
import { table } from "../table.js";
import { clock, cost, number, percent, plural, seconds, whole, words } from "../units.js";

const PAGE = 200;

export async function history({ go, overview }) {
  const node = h("div", {});
  const draw = async () => {
    const host = address.get("host"), q = address.get("q"), job = address.get("job");
    const [found, chosen] = await Promise.all([
      host ? load("host", { name: host, limit: PAGE }) : load("history", { job, q, limit: PAGE }), address.get("first") && address.get("second") ? compare() : null]);
    const title = host ? `Host ${host}` : job ? `History of ${job}` : "History";
    const form = h("form", { class: "chips", role: "search", onsubmit: (event) => { event.preventDefault(); go("/history", { q: new FormData(event.target).get("q") }); } },
      h("input", { type: "search", name: "q", "aria-label": "Search jobs, hosts, runs, findings, verdicts", placeholder: "Search everything", value: q }), h("button", {}, "Search"));
    clear(node, h("div", { class: "head" }, h("h1", {}, title), h("span", { class: "sub" }, plural(found.total, "entry", "entries")), h("span", { class: "grow" }), form),
      found.num_waiting ? h("p", { class: "alert" }, `${plural(found.num_waiting, "source")} of the folder not in the history yet.`) : null,
      host ? hostCard(found) : daysCard(found.days, job, overview), chosen, q ? await hostsFound(q) : null, entriesCard(found, job), remarks(found.annotations, draw, { job, host }));
  };
  await draw();
  return { node, refresh: draw };
}

function hostCard(found) {
  const facts = [["now", [badge(found.state, found.state === "ok" ? "good" : found.state === "unknown" ? "" : "bad"), " ", found.why]], ["jobs", found.jobs.join(", ")], ["addresses", found.addresses.join(", ")], ["switches", found.switches.join(", ")],
    ["held against it", (found.known?.reasons || []).join("; ")], ["cordons", found.known ? whole(found.known.num_cordons) : ""]];
  return card("What is known", h("dl", { class: "facts" }, facts.filter(([, value]) => value && value.length).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function daysCard(days, job, overview) {
  if (!days.length) return card("Days", empty("Nothing is in the history", "Whatever is found in the folder is remembered here."));
  const lost = days.reduce((sum, day) => sum + day.lost_gpu_s, 0), steps = days.map((day) => day.step_s).filter((value) => value !== null);
  const day = (d) => `day:${d.day}${job ? `:${job}` : ""}`;
  const built = table("days", [
    { name: "day (UTC)", get: (d) => d.day }, { name: "jobs", num: true, get: (d) => d.num_jobs }, { name: "runs", num: true, get: (d) => d.num_runs },
    { name: "step time", num: true, get: (d) => d.step_s, show: (d) => seconds(d.step_s), title: "median" }, { name: "findings", num: true, get: (d) => d.num_findings }, { name: "failures", num: true, get: (d) => d.num_verdicts },
    { name: "restarts", num: true, get: (d) => d.restarts }, { name: "goodput", num: true, get: (d) => d.goodput, show: (d) => percent(d.goodput, 1), title: "share of the time of runs that went into steps that were kept" },
    { name: "GPU-hours lost", num: true, get: (d) => d.lost_gpu_s / 3600, show: (d) => number(d.lost_gpu_s / 3600) },
    cost(1) ? { name: "cost", num: true, get: (d) => cost(d.lost_gpu_s) } : null,
    { name: "compare", show: (d) => compareLinks(day(d)) },
  ].filter(Boolean), days, { caption: "Days", most: 31, sort: ["day (UTC)", true] });
  return h("div", {}, h("div", { class: "tiles" }, tile(whole(days.length), "days"), tile(number(lost / 3600), "GPU-hours lost"), cost(1) ? tile(cost(lost), "cost of what was lost") : null,
    tile(seconds(steps.at(-1) ?? null), "step time, last day"), h("div", { class: "tile" }, steps.length > 1 ? sparkline(steps) : h("b", {}, "–"), h("span", {}, "step time by day"))), card("Days", built.node, { tools: built.tools }));
}

const compareLinks = (ref) => {
  const first = address.get("first"), query = Object.fromEntries(new URLSearchParams(location.search));
  return h("a", { href: address.link("/history", first && !address.get("second") ? { ...query, second: ref } : { ...query, first: ref, second: "" }) }, first && !address.get("second") ? "with this" : "this");
};

async function compare() {
  let found;
  try { found = await load("difference", { first: address.get("first"), second: address.get("second") }); } catch (error) { return card("Side by side", empty("These cannot be compared", error.message)); }
  const built = table("difference", [{ name: "figure", get: (r) => words(r.name) }, { name: "unit", get: (r) => r.unit }, { name: "first", num: true, get: (r) => r.first, show: (r) => number(r.first) }, { name: "second", num: true, get: (r) => r.second, show: (r) => number(r.second) },
    { name: "second over first", num: true, get: (r) => r.ratio, show: (r) => number(r.ratio) }], found.rows, { caption: "Side by side" });
  return card("Side by side", built.node, { about: `${found.first} and ${found.second}`, tools: built.tools });
}

async function hostsFound(q) {
  const { hosts } = await load("search", { q });
  return hosts.length ? card("Hosts", h("div", { class: "chips" }, hosts.map((found) => h("a", { class: "button", href: address.link("/history", { host: found.host }) }, found.host)))) : null;
}

function entriesCard(found, job) {
  if (!found.entries.length) return card("Entries", empty("Nothing matches", ""));
  const built = table("history", [
    { name: "until", tight: true, get: (e) => Number(e.until_ns), show: (e) => clock(e.until_ns, { date: true }) }, { name: "what", get: (e) => words(e.kind), show: (e) => [badge(words(e.kind), "info"), e.gone ? [" ", badge("gone")] : null] },
    { name: "job", cut: true, get: (e) => e.job, show: (e) => (e.job && e.job !== job ? h("a", { href: address.link("/history", { job: e.job }) }, e.job) : e.job || "–") },
    { name: "says", wide: true, get: (e) => e.text, show: (e) => (e.gone ? e.text || e.key : h("a", { href: address.at(e.page) }, e.text || e.key)) }, { name: "state", get: (e) => e.state },
    { name: "step time", num: true, get: (e) => e.step_s, show: (e) => seconds(e.step_s) }, { name: "goodput", num: true, get: (e) => e.goodput, show: (e) => percent(e.goodput, 1) }, { name: "compare", show: (e) => compareLinks(e.ref) },
  ], found.entries, { caption: "Entries", most: 50 });
  return card("Entries", built.node, { tools: built.tools, about: found.total > found.entries.length ? `the newest ${whole(found.entries.length)} of ${whole(found.total)}; /api/history pages through all` : "newest first" });
}

function remarks(rows, redraw, about) {
  const said = h("p", { class: "note", role: "status" });
  const send = async (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text");
    const answer = await fetch(address.at("/api/annotations"), { method: "POST", headers: { "Content-Type": "application/json", "X-Prism-Write": "1" }, body: JSON.stringify({ text, at_ns: Date.now() * 1e6, ...about }) });
    if (answer.ok) await redraw(); else said.textContent = answer.status === 405 ? "Nothing can be written: the service was started without --state." : (await answer.json()).error.message;
  };
  return card("Remarks", h("div", {}, rows.length ? h("ul", { class: "notes" }, rows.map((row) => h("li", {}, h("b", {}, clock(row.at_ns, { date: true })), ` ${row.text}`, row.author ? ` (${row.author})` : ""))) : h("p", { class: "note" }, "No remark yet."),
    h("form", { class: "chips", onsubmit: send }, h("input", { name: "text", type: "search", required: true, "aria-label": "A remark on this moment", placeholder: "A remark on this moment" }), h("button", {}, "Write")), said));
}
