// Cluster: jobs with layout, trend and health; topology with hot links and condemned hosts; who shares a link.
import { link } from "../address.js";
import { jobColour } from "../charts.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h, health, sparkline, tile } from "../dom.js";
import { table } from "../table.js";
import { ago, clock, cost, gbps, percent, plural, seconds, whole, words } from "../units.js";

export async function cluster({ go }) {
  const node = h("div", {});
  const draw = async () => clear(node, ...page(await load("cluster"), go));
  await draw();
  return { node, refresh: draw, repaint() {} };
}

function page(data, go) {
  const { jobs, predictions, counts } = data;
  const head = h("div", { class: "head" }, h("h1", {}, "Cluster"), h("span", { class: "sub" }, "the newest look at every job, how well it is, and on what it runs"));
  if (!jobs.length && !predictions.length && !data.hosts.length) return [head, card("Jobs", empty("No job is known yet", "Diagnose flows, watch a source, or supervise a run with its output below this folder.", "prism diagnose flows.parquet --topology topology.csv --output report/"))];
  const tiles = h("div", { class: "tiles" },
    tile(whole(counts.jobs), "jobs"), tile(counts.ranks ? whole(counts.ranks) : "–", "ranks seen"), tile(counts.hosts ? whole(counts.hosts) : "–", "hosts known"),
    tile(whole(counts.open_findings), "open findings", counts.open_findings ? "bad" : ""), tile(whole(counts.lost_gpu_seconds), `GPU s lost to them${cost(counts.lost_gpu_seconds, ", ")}`, counts.lost_gpu_seconds ? "warn" : ""),
    tile(whole(counts.suspects), "hosts under suspicion", counts.cordoned ? "bad" : counts.suspects ? "warn" : ""));
  const colours = new Map([...new Set(data.hosts.flatMap((host) => host.jobs.map((id) => `${host.place}~${id}`)))].sort().map((key, i) => [key, jobColour(i)]));
  return [head, tiles, jobsCard(jobs, colours, data.jobs_left_out), findingsCard(data.findings, go), data.resolved.length ? resolvedCard(data.resolved) : null, topologyCard(data, colours, go), linksCard(data),
    data.earlier.length ? earlierCard(data) : null, predictions.length ? predictionsCard(predictions) : null,
    data.notes.length ? card("Notes of the diagnoses", h("ul", { class: "notes" }, data.notes.map((note) => h("li", {}, note)))) : null];
}

function resolvedCard(findings) {
  const built = table("resolved", [
    { name: "what", get: (f) => words(f.kind), show: (f) => badge(words(f.kind)) }, { name: "job", get: (f) => f.job, cut: true }, { name: "culprit", get: (f) => `${f.culprit_type} ${f.culprit}`, cut: true },
    { name: "GPU s lost", num: true, get: (f) => f.lost_gpu_seconds, show: (f) => whole(f.lost_gpu_seconds) }, { name: "until", get: (f) => String(BigInt(f.origin_ns) + BigInt(f.to_ns)), show: (f) => clock(BigInt(f.origin_ns) + BigInt(f.to_ns), { date: true }) },
  ], findings, { most: 10, caption: "Resolved findings" });
  return card("Resolved", built.node, { about: "a watch saw these and does not see them any more", tools: built.tools });
}

function earlierCard(data) {
  const built = table("earlier", [
    { name: "job", get: (j) => j.id, cut: true, show: jobLink }, { name: "until", get: (j) => j.looked_until_ns, show: (j) => clock(j.looked_until_ns, { date: true }) }, { name: "step time", num: true, get: (j) => j.step_s, show: (j) => seconds(j.step_s) },
    { name: "findings", num: true, get: (j) => j.num_findings }, { name: "from", get: (j) => `${j.source} ${j.place}`, cut: true },
  ], data.earlier, { most: 10, sort: ["until", true], caption: "Earlier looks" });
  return card("Earlier looks", built.node, { about: `replaced by newer ones, or of jobs that are gone; not counted above${data.earlier_left_out ? `; ${whole(data.earlier_left_out)} more are left out` : ""}`, tools: built.tools });
}

const jobLink = (job) => h("a", { href: job.source === "supervised" ? link("/failures", { run: job.key }) : link("/job", { key: job.key }) }, job.id);

function jobsCard(jobs, colours, leftOut) {
  if (!jobs.length) return card("Jobs", empty("No running job is known", "Only predictions were found; see below."));
  const built = table("jobs", [
    { name: "job", get: (j) => j.id, cut: true, show: (j) => [h("span", { class: "sw", style: { background: colours.get(j.key) || "var(--faint)", marginRight: "8px" } }), jobLink(j)] },
    { name: "health", get: (j) => j.health, show: (j) => health(j.health, j.health_text) },
    { name: "state", fold: 7, get: (j) => j.state, show: (j) => [j.state === "unknown" ? "–" : j.state, j.stale ? [" ", badge("stale", "warn", "not written to for long")] : null] },
    { name: "as of", fold: 9, tight: true, get: (j) => j.looked_until_ns, show: (j) => h("span", { title: clock(j.looked_until_ns, { date: true }) }, ago(j.looked_until_ns)) },
    { name: "layout", fold: 4, get: (j) => j.layout, show: (j) => (j.layout ? h("span", { class: "mono", title: j.degrees.map((d) => `${d.name} ${d.value ?? "?"}: ${percent(d.confidence)} sure`).join("\n") }, j.layout) : "–") },
    { name: "ranks", fold: 5, num: true, get: (j) => j.num_ranks, show: (j) => whole(j.num_ranks) },
    { name: "hosts", fold: 2, num: true, get: (j) => j.num_hosts, show: (j) => whole(j.num_hosts) },
    { name: "steps", fold: 3, num: true, get: (j) => j.num_steps, show: (j) => whole(j.num_steps) },
    { name: "step time", fold: 8, num: true, get: (j) => j.step_s, show: (j) => seconds(j.step_s), title: "median" },
    { name: "trend", fold: 6, show: (j) => sparkline(j.trend_s) },
    { name: "GPU s lost", num: true, get: (j) => j.lost_gpu_seconds, show: (j) => (j.num_findings ? whole(j.lost_gpu_seconds) : "–") },
    { name: "what is wrong", wide: true, get: (j) => j.health_text, show: (j) => (j.health === "ok" ? h("span", { class: "note" }, j.health_text) : words(j.health_text)) },
    { name: "from", fold: 1, get: (j) => `${j.source} ${j.place}`, cut: true, show: (j) => [h("span", { class: "note" }, `${j.source} · ${j.place}`), j.run_key ? [" ", h("a", { href: link("/failures", { run: j.run_key }) }, "its run")] : null] },
  ], jobs, { sort: ["GPU s lost", true], caption: "Jobs" });
  return card("Jobs", built.node, { tools: built.tools, about: leftOut ? `${whole(leftOut)} more are left out; /api/jobs pages through all` : "" });
}

export function findingsCard(findings, go, { onchoose } = {}) {
  if (!findings.length) return card("Findings", empty("No finding is open", "Findings of diagnose and watch appear here, worst first."));
  const built = table("findings", [
    { name: "what", get: (f) => words(f.kind), show: (f) => badge(words(f.kind), f.kind === "hang" ? "bad" : "warn") },
    { name: "job", fold: 3, get: (f) => f.job, cut: true, show: (f) => h("a", { href: findingLink(f) }, f.job) },
    { name: "culprit", get: (f) => `${f.culprit_type} ${f.culprit}`, cut: true, show: (f) => [h("span", { class: "note" }, f.culprit_type), " ", f.culprit] },
    { name: "GPU s lost", num: true, get: (f) => f.lost_gpu_seconds, show: (f) => whole(f.lost_gpu_seconds) },
    { name: "sure", fold: 1, num: true, get: (f) => f.score, show: (f) => percent(f.score) },
    { name: "lasts", fold: 2, num: true, get: (f) => f.to_ns - f.from_ns, show: (f) => seconds((f.to_ns - f.from_ns) / 1e9) },
    { name: "evidence", wide: true, get: (f) => f.evidence },
  ], findings, { sort: ["GPU s lost", true], caption: "Findings", go: (f) => (event) => { if (event.target.closest("a")) return; if (onchoose) onchoose(f); else go("/job", findingQuery(f)); } });
  return card("Findings", built.node, { about: "worst first; choose one to see it on the timeline", tools: built.tools });
}

const findingQuery = (f) => {
  const margin = Math.max(1000, Math.round(0.1 * (f.to_ns - f.from_ns)));
  return { key: f.job_key, from: (BigInt(f.origin_ns) + BigInt(f.from_ns - margin)).toString(), to: (BigInt(f.origin_ns) + BigInt(f.to_ns + margin)).toString() };
};
const findingLink = (f) => link("/job", findingQuery(f));

const byName = new Intl.Collator("en", { numeric: true }).compare; // node-2 before node-10

function heat(value, top) {
  if (value === null || !top) return "var(--line-soft)";
  const share = Math.min(1, value / top);
  return `color-mix(in oklab, var(--heat-high) ${Math.round(100 * share)}%, var(--heat-low))`;
}

function topologyCard(data, colours, go) {
  if (!data.hosts.length) return card("Topology", empty("No hosts are known", "Give diagnose a topology to see hosts, rails and switches.", "prism diagnose flows.parquet --topology topology.csv --output report/"));
  const top = data.top_gbps;
  const names = [...colours.keys()];
  const legend = h("div", { class: "legend" }, names.slice(0, 12).map((key) => h("span", {}, h("span", { class: "sw", style: { background: colours.get(key) } }), key.split("~").pop())),
    names.length > 12 ? h("span", {}, `and ${names.length - 12} more`) : null,
    top ? h("span", {}, "load of a NIC, 0", h("span", { class: "ramp", style: { background: "linear-gradient(90deg, var(--heat-low), var(--heat-high))" } }), gbps(top)) : h("span", {}, "no load was written; diagnose with --output writes links.parquet"),
    h("span", {}, badge("blamed", "warn"), badge("cordoned", "bad")));
  const most = Math.max(0, ...data.switches.map((s) => s.mean_gbps || 0));
  const switches = h("div", { class: "switches" }, data.switches.slice(0, 128).map((s) => h("div", { class: `switch ${s.blamed ? "bad" : ""}`, title: `${s.switch}: ${plural(s.num_nics, "NIC")}, tenants ${s.jobs.join(", ") || "none"}` },
    h("b", {}, s.switch), h("div", { class: "meter" }, h("i", { style: { width: `${most && s.mean_gbps ? (100 * s.mean_gbps) / most : 0}%` } })),
    h("small", {}, s.mean_gbps === null ? plural(s.num_nics, "NIC") : `${gbps(s.mean_gbps)} mean`), h("small", {}, plural(s.jobs.length, "tenant"), s.blamed ? ", blamed" : ""))));
  const hosts = h("div", { class: "hosts" }, [...data.hosts].sort((a, b) => byName(a.host, b.host)).slice(0, 2048).map((host) => h("div", { class: `host ${host.state}`, title: describeHost(host), style: { borderLeftColor: colours.get(`${host.place}~${host.jobs[0]}`) || "var(--faint)" } },
    h("b", {}, host.host), host.nics.length ? h("span", { class: "nics" }, host.nics.slice(0, 16).map((nic) => h("i", { style: { background: heat(nic.peak_gbps, top) } }))) : null)));
  const suspects = data.hosts.filter((host) => host.state !== "ok");
  return card("Topology", h("div", {}, legend,
    suspects.length ? h("p", {}, suspects.slice(0, 8).map((host) => h("div", {}, badge(host.state, host.state === "cordoned" ? "bad" : "warn"), " ", h("b", {}, host.host), " ", h("span", { class: "note" }, host.why)))) : null,
    data.switches.length ? [h("h3", {}, "Switches"), switches] : null, h("h3", {}, "Hosts and their NICs"), hosts,
    data.hosts_left_out || data.hosts.length > 2048 ? h("p", { class: "note" }, `${whole(data.hosts_left_out + Math.max(0, data.hosts.length - 2048))} hosts are not drawn`) : null),
  { about: `${plural(data.hosts.length + data.hosts_left_out, "host")}, ${plural(data.switches.length, "switch", "switches")}` });
}

const describeHost = (host) => [host.host, host.jobs.length ? `jobs: ${host.jobs.join(", ")}` : "no job", host.why,
  ...host.nics.map((nic) => `${nic.address}${nic.switch ? ` on ${nic.switch}` : ""}${nic.peak_gbps === null ? "" : `: ${gbps(nic.mean_gbps)} mean, ${gbps(nic.peak_gbps)} peak`}`)].filter(Boolean).join("\n");

function linksCard(data) {
  const links = table("hot-links", [
    { name: "link", get: (l) => l.address, show: (l) => h("span", { class: "mono" }, l.address) },
    { name: "host", get: (l) => l.host, cut: true }, { name: "switch", get: (l) => l.switch, cut: true },
    { name: "peak", num: true, get: (l) => l.peak_gbps, show: (l) => gbps(l.peak_gbps) },
    { name: "mean", num: true, get: (l) => l.mean_gbps, show: (l) => gbps(l.mean_gbps) },
    { name: "over time", show: (l) => sparkline(l.series_gbps) },
    { name: "tenants", get: (l) => l.jobs.join(" "), show: (l) => l.jobs.map((job) => [badge(job), " "]) },
  ], data.hot_links, { most: 10, sort: ["peak", true], caption: "Hot links" });
  const shared = table("shared", [
    { name: "what", get: (s) => s.type, show: (s) => badge(s.type, s.type === "link" ? "warn" : "info") }, { name: "name", get: (s) => s.id, cut: true },
    { name: "tenants", get: (s) => s.jobs.join(" "), show: (s) => s.jobs.map((job) => [badge(job), " "]) },
    { name: "peak", num: true, get: (s) => s.peak_gbps, show: (s) => gbps(s.peak_gbps), title: "of the busiest NIC" },
  ], data.shared, { most: 10, sort: ["what", false], caption: "Shared" });
  return h("div", { class: "grid" },
    card("Hot links", data.hot_links.length ? links.node : empty("The load of links is not known", "links.parquet beside a diagnosis holds it."), { tools: data.hot_links.length ? links.tools : null, about: "busier direction" }),
    card("Shared by tenants", data.shared.length ? shared.node : sharedEmpty(data), { tools: data.shared.length ? shared.tools : null }));
}

function sharedEmpty(data) {
  if (!data.links_known && !data.switches_known) return empty("Who shares what is not known", "Diagnose with a topology and --output: links.parquet holds the tenants of links.");
  if (!data.links_known) return empty("No switch is shared", "Whether links are is not known: no links.parquet was written.");
  return empty("No link or switch is shared", "Every tenant has its own, in what was diagnosed.");
}

function predictionsCard(jobs) {
  const built = table("predictions", [
    { name: "prediction", get: (j) => `${j.place} ${j.id}`, cut: true, show: (j) => h("a", { href: link("/job", { key: j.key }) }, j.source === "scenario" ? `${j.place} · ${j.id}` : j.place) },
    { name: "kind", get: (j) => j.source, show: (j) => badge(j.source, "info") },
    { name: "ranks", num: true, get: (j) => j.num_ranks, show: (j) => whole(j.num_ranks) },
    { name: "steps", num: true, get: (j) => j.num_steps, show: (j) => whole(j.num_steps) },
    { name: "step time", num: true, get: (j) => j.step_s, show: (j) => seconds(j.step_s) },
    { name: "trend", show: (j) => sparkline(j.trend_s) },
  ], jobs, { caption: "Predictions" });
  return card("Predictions", built.node, { about: "what a program or a plan should do", tools: built.tools });
}

