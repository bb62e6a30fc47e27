// The frame of all pages: which one is shown, whether the folder changed, keys and theme.
import * as address from "./address.js";
import { redraw } from "./charts.js";
import { load } from "./data.js";
import { card, clear, empty, h } from "./dom.js";
import { api } from "./pages/api.js";
import { cluster } from "./pages/cluster.js";
import { datacenter } from "./pages/datacenter.js";
import { evaluation } from "./pages/evaluation.js";
import { failures } from "./pages/failures.js";
import { history as past } from "./pages/history.js";
import { job } from "./pages/job.js";
import { hours } from "./pages/hours.js";
import { incident } from "./pages/incident.js";
import { now } from "./pages/now.js";
import { reports } from "./pages/reports.js";
import { ago, plural, setPrice, toggleZone, whole } from "./units.js";

const PAGES = [
  { path: "/", title: "Now", open: now, count: (o) => o.num_sick, bad: true },
  { path: "/cluster", title: "Cluster", open: cluster, count: (o) => o.num_findings },
  { path: "/job", title: "Job", open: job, count: (o) => o.num_jobs },
  { path: "/failures", title: "Failures", open: failures, count: (o) => o.num_verdicts },
  { path: "/evaluation", title: "Evaluation", open: evaluation, count: (o) => o.num_evaluations },
  { path: "/datacenter", title: "Datacenter", open: datacenter, count: (o) => o.num_reports },
  { path: "/reports", title: "Reports", open: reports, count: (o) => o.num_printed },
  { path: "/history", title: "History", open: past, count: (o) => o.num_archived },
  { path: "/hours", title: "Hours", open: hours, count: () => 0 },
];
const HIDDEN = [{ path: "/incident", title: "Incident", open: incident }, { path: "/api", title: "API", open: api }];
const POLL_MS = 1000, STREAM_MS = 25_000, SETTLE_MS = 10_000; // a stream is reopened every 20 s and then sends the version

const root = document.getElementById("page"), nav = document.getElementById("nav"), status = document.getElementById("status"), foot = document.getElementById("foot"), help = document.getElementById("help");
let current = null, version = 0, overview = null, turn = 0, gone = "";

async function open() {
  const page = [...PAGES, ...HIDDEN].find((p) => p.path === address.page()) || PAGES[0];
  const mine = ++turn;
  gone = "";
  current?.close?.();
  current = null;
  document.title = `${page.title} · Prism`;
  document.documentElement.toggleAttribute("data-wall", address.get("wall", null) !== null);
  drawNav(page);
  if (!root.childElementCount) clear(root, h("div", { class: "loading" }, "Loading"));
  try {
    const view = await page.open({ go, overview });
    if (mine !== turn) { view.close?.(); return; }
    current = view;
    clear(root, h("div", { id: "states" }, states()), view.node);
    view.start?.();
  } catch (error) {
    if (mine !== turn) return;
    clear(root, h("div", { class: "head" }, h("h1", {}, page.title)), card("This cannot be shown", empty("The service did not answer as hoped", error.message)));
  }
  root.dataset.page = page.path;
}

async function reload() {
  clear(document.getElementById("states") || h("div"), states());
  if (!current?.refresh) { if (!document.activeElement || document.activeElement === document.body) await open(); return; }
  const mine = turn;
  try {
    await keepFocus(() => current.refresh());
    if (gone) { gone = ""; clear(document.getElementById("states"), states()); }
  } catch (error) {
    if (mine !== turn) return;
    // The source of the page is not in the folder any more: the page stays readable and is marked as old.
    gone = error.status === 404 ? "What is shown below is gone from the folder, or cannot be read any more" : `What is shown below could not be brought up to date: ${error.message}`;
    gone += `; it is as it was ${new Date().toISOString().slice(11, 19)} UTC at the latest.`;
    clear(document.getElementById("states"), states());
    drawStatus(true);
  }
}

// Pages are redrawn; the focus stays on the field or button that had it.
async function keepFocus(draw) {
  const active = document.activeElement, inside = active && root.contains(active) && active !== root;
  const name = inside && describe(active), alike = inside && [...root.querySelectorAll(active.tagName)].filter((n) => describe(n) === name).indexOf(active);
  const range = inside && "selectionStart" in active && active.type !== "number" ? [active.selectionStart, active.selectionEnd] : null, { scrollX, scrollY } = window;
  await draw();
  if (!inside || root.contains(document.activeElement) && document.activeElement !== root) return;
  const again = [...root.querySelectorAll(active.tagName)].filter((n) => describe(n) === name)[alike];
  again?.focus({ preventScroll: true });
  if (range && again?.setSelectionRange) try { again.setSelectionRange(...range); } catch { /* not a text field */ }
  if (again) window.scrollTo(scrollX, scrollY);
}
const describe = (node) => [node.tagName, node.id, node.getAttribute("aria-label"), node.getAttribute("href"), node.tagName === "INPUT" || node.tagName === "SELECT" ? "" : node.textContent].join("|");

function states() {
  const rows = overview?.problems || [], count = (state) => rows.filter((row) => row.state === state).length;
  const said = ["broken", "gone", "stale"].filter(count).map((state) => `${plural(count(state), "file")} ${state}`);
  return [
    gone ? h("p", { class: "alert", role: "alert" }, gone) : null,
    overview?.files_left_out ? h("p", { class: "alert" }, `Only the first ${whole(overview.num_files)} files of the folder are looked at; serve a smaller folder, or raise --most-files.`) : null,
    overview?.num_archived ? h("p", { class: "alert" }, `${plural(overview.num_archived, "older source")} not counted here; they are in the `, h("a", { href: address.at("/history") }, "history"), ".") : null,
    rows.length ? h("details", { class: "alert" }, h("summary", {}, said.join(", ")), h("ul", { class: "notes" }, rows.map((row) => h("li", {}, h("b", {}, row.state), ` ${ago(row.since_ns)}: ${row.message}`)))) : null,
  ].filter(Boolean);
}

function drawNav(page) {
  const params = new URLSearchParams(location.search);
  clear(nav, PAGES.map((p) => {
    const count = overview ? p.count(overview) : 0;
    const href = p.path !== "/job" ? address.at(p.path) : params.get("key") && page.path === "/job" ? location.pathname + location.search : address.at(p.path);
    return h("a", { href, "aria-current": p === page ? "page" : null }, p.title, count ? h("span", { class: `count ${p.bad ? "bad" : ""}`, title: p.bad ? plural(count, "finding") : null }, count) : null);
  }));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

let drawnStatus = "";
function drawStatus(ok, fresh = false) {
  const troubled = ok && (gone || overview?.problems.some((row) => row.state !== "gone")), text = !ok ? "no connection" : troubled ? "live, see above" : "live";
  if (drawnStatus === text && !fresh) return; // screen readers announce every change here
  drawnStatus = text;
  clear(status, h("span", { class: "live", title: ok ? "The folder is looked at every second" : "The service does not answer; what is shown is old" }, h("span", { class: `dot ${ok ? (troubled ? "doubt" : "") : "off"} ${fresh ? "new" : ""}` }), h("span", { class: "hide-narrow" }, text)),
    h("button", { class: "plain", title: "Dark or light (T)", "aria-label": "Dark or light", onclick: toggleTheme }, "◐"),
    h("button", { class: "plain", title: "Keyboard (?)", "aria-label": "Keyboard help", onclick: showHelp }, "?"));
}

async function update(seen) {
  if (seen === version) { drawStatus(true); return; }
  const first = version === 0;
  version = seen;
  overview = await load("overview");
  setPrice(overview);
  drawStatus(true, !first);
  drawFoot();
  if (first) await open(); else { drawNav([...PAGES, ...HIDDEN].find((p) => p.path === address.page()) || PAGES[0]); await reload(); }
  root.dataset.version = String(version);
}

// The service streams every change; if a proxy blocks the stream, the page polls.
let told = 0, busy = false, wanted = null;
async function heed(seen) {
  wanted = seen;
  if (busy) return;
  busy = true;
  try { while (wanted !== null) { const now = wanted; wanted = null; await update(now); } } catch { drawStatus(false); } finally { busy = false; }
}

let stream = null;
function listen() {
  stream?.close();
  stream = new EventSource(address.at("/api/events"));
  stream.onmessage = (event) => { told = Date.now(); tell(Number(event.data)); heed(Number(event.data)); };
}

// A browser opens at most six connections to a service, so one of its windows listens and informs the others.
const own = Math.random();
const windows = "BroadcastChannel" in window ? new BroadcastChannel(`prism ${address.at("/api/events")}`) : null;
function tell(seen) { windows?.postMessage({ from: own, seen }); }
if (windows) windows.onmessage = ({ data }) => {
  told = Date.now();
  if (stream && data.from < own) { stream.close(); stream = null; }
  heed(data.seen);
};

// A short visit polls and holds no connection: browsers that print or capture a page wait for streams to end.
let settling = 0;
function settle() {
  clearTimeout(settling);
  settling = setTimeout(() => { if (!document.hidden && Date.now() - told > STREAM_MS) listen(); }, SETTLE_MS);
}

async function poll() {
  if (!document.hidden && Date.now() - told > STREAM_MS) {
    if (told && !stream) { told = 0; settle(); } // the window that listened is gone
    try { await heed((await load("version")).version); } catch { drawStatus(false); }
  }
  setTimeout(poll, POLL_MS);
}

function drawFoot() {
  clear(foot, h("span", {}, `Folder ${overview.folder}, ${plural(overview.num_files, "file")}`), h("a", { href: address.at("/api") }, "API"), h("a", { href: address.at("/metrics"), "data-outside": "yes" }, "Metrics"), h("span", {}, "Read-only"));
}

export function go(path, values = {}, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address.link(path, values));
  open();
  window.scrollTo(0, 0);
}

function toggleTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("prism-theme", next); } catch { /* storage may be off */ }
  redraw();
  current?.repaint?.();
}

const KEYS = [
  ["1 to 9", "Now, Cluster, Job, Failures, Evaluation, Datacenter, Reports, History, Hours"], ["J K A O", "front page: next, previous incident, take it up, open it"], ["U", "local time or UTC"], ["T", "dark or light"], ["/", "filter the first table"], ["?", "this help"],
  ["W S or + −", "timeline: zoom in, out"], ["A D", "timeline: pan"], ["← → ↑ ↓", "with the timeline in focus: pan, scroll rows"], ["F", "timeline: all of it"], ["N P", "timeline: next, previous step"], ["J K", "timeline: next, previous finding"], ["L", "timeline: lanes or ranks"],
  ["Ctrl + wheel", "timeline: zoom at the pointer; Shift + wheel pans, drag moves, Shift + drag or a drag on the ruler zooms to a range, double click zooms in; the strip below moves too"],
];

function showHelp() {
  clear(help, h("h2", {}, "Keyboard"), h("table", {}, h("tbody", {}, KEYS.map(([keys, what]) => h("tr", {}, h("td", {}, h("kbd", {}, keys)), h("td", {}, what))))), h("p", {}, h("button", { onclick: () => help.close() }, "Close")));
  help.showModal();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download") || link.dataset.outside) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || ![...PAGES, ...HIDDEN].some((p) => address.at(p.path) === url.pathname)) return;
  if (link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  history.pushState(null, "", url.pathname + url.search);
  open();
  window.scrollTo(0, 0);
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key >= "1" && event.key <= "9") go(PAGES[Number(event.key) - 1].path);
  else if (event.key === "t") toggleTheme();
  else if (event.key === "u") { toggleZone(); open(); }
  else if (event.key === "?") showHelp();
  else if (event.key === "/") { const field = root.querySelector("input[type=search]"); if (field) { event.preventDefault(); field.focus(); } }
  // Arrows, Page and Home keys scroll the page; they move the timeline only while it has the focus.
  else if (event.key.length === 1 && current?.key?.(event)) event.preventDefault();
});

window.addEventListener("popstate", open);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); current?.repaint?.(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) current?.repaint?.(); });
drawStatus(true);
document.addEventListener("visibilitychange", () => { if (document.hidden) { stream?.close(); stream = null; told = 0; } else settle(); });
settle();
poll();
