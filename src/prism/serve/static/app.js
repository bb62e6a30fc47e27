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
import { job } from "./pages/job.js";
import { plural } from "./units.js";

const PAGES = [
  { path: "/", title: "Cluster", open: cluster, count: (o) => o.num_findings, bad: true },
  { path: "/job", title: "Job", open: job, count: (o) => o.num_jobs },
  { path: "/failures", title: "Failures", open: failures, count: (o) => o.num_verdicts },
  { path: "/evaluation", title: "Evaluation", open: evaluation, count: (o) => o.num_evaluations },
  { path: "/datacenter", title: "Datacenter", open: datacenter, count: (o) => o.num_reports },
];
const HIDDEN = [{ path: "/api", title: "API", open: api }];
const POLL_MS = 2000;

const root = document.getElementById("page"), nav = document.getElementById("nav"), status = document.getElementById("status"), foot = document.getElementById("foot"), help = document.getElementById("help");
let current = null, version = 0, overview = null, turn = 0;

async function open() {
  const page = [...PAGES, ...HIDDEN].find((p) => p.path === location.pathname) || PAGES[0];
  const mine = ++turn;
  current?.close?.();
  current = null;
  document.title = `${page.title} · Prism`;
  drawNav(page);
  if (!root.childElementCount) clear(root, h("div", { class: "loading" }, "Loading"));
  try {
    const view = await page.open({ go, overview });
    if (mine !== turn) { view.close?.(); return; }
    current = view;
    clear(root, problems(), view.node);
    view.start?.();
  } catch (error) {
    if (mine !== turn) return;
    clear(root, h("div", { class: "head" }, h("h1", {}, page.title)), card("This cannot be shown", empty("The service did not answer as hoped", error.message)));
  }
  root.dataset.page = page.path;
}

async function reload() {
  if (!current?.refresh) { await open(); return; }
  const mine = turn;
  try { await current.refresh(); } catch (error) { if (mine === turn) console.warn("refresh:", error.message); }
}

function problems() {
  if (!overview?.problems.length) return null;
  return h("details", { class: "alert" }, h("summary", {}, `${plural(overview.problems.length, "file")} could not be read`), h("ul", { class: "notes" }, overview.problems.map((p) => h("li", {}, p.message))));
}

function drawNav(page) {
  const params = new URLSearchParams(location.search);
  clear(nav, PAGES.map((p) => {
    const count = overview ? p.count(overview) : 0;
    const href = p.path === "/job" && params.get("key") && page.path === "/job" ? location.pathname + location.search : p.path;
    return h("a", { href, "aria-current": p === page ? "page" : null }, p.title, count ? h("span", { class: `count ${p.bad ? "bad" : ""}`, title: p.bad ? plural(count, "finding") : null }, count) : null);
  }));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function drawStatus(ok, fresh = false) {
  clear(status, h("span", { class: "live", title: ok ? "The folder is looked at every second" : "The service does not answer" }, h("span", { class: `dot ${ok ? "" : "off"} ${fresh ? "new" : ""}` }), h("span", { class: "hide-narrow" }, ok ? "live" : "no connection")),
    h("button", { class: "plain", title: "Dark or light (T)", "aria-label": "Dark or light", onclick: toggleTheme }, "◐"),
    h("button", { class: "plain", title: "Keyboard (?)", "aria-label": "Keyboard help", onclick: showHelp }, "?"));
}

async function poll() {
  try {
    if (!document.hidden) {
      const seen = (await load("version")).version;
      if (seen !== version) {
        const first = version === 0;
        version = seen;
        overview = await load("overview");
        drawStatus(true, !first);
        drawFoot();
        if (first) await open(); else { drawNav([...PAGES, ...HIDDEN].find((p) => p.path === location.pathname) || PAGES[0]); await reload(); }
        root.dataset.version = String(version);
      } else if (status.querySelector(".off")) drawStatus(true);
    }
  } catch { drawStatus(false); }
  setTimeout(poll, POLL_MS);
}

function drawFoot() {
  clear(foot, h("span", {}, `Folder ${overview.folder}, ${plural(overview.num_files, "file")}`), h("a", { href: "/api" }, "API"), h("a", { href: "/metrics", "data-outside": "yes" }, "Metrics"), h("span", {}, "Read-only"));
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
  ["1 to 5", "Cluster, Job, Failures, Evaluation, Datacenter"], ["T", "dark or light"], ["/", "filter the first table"], ["?", "this help"],
  ["W S or + −", "timeline: zoom in, out"], ["A D or ← →", "timeline: pan"], ["↑ ↓", "timeline: scroll rows"], ["F", "timeline: all of it"], ["N P", "timeline: next, previous step"], ["J K", "timeline: next, previous finding"], ["L", "timeline: lanes or ranks"],
  ["Ctrl + wheel", "timeline: zoom at the pointer; Shift + wheel pans, drag moves, double click zooms in"],
];

function showHelp() {
  clear(help, h("h2", {}, "Keyboard"), h("table", {}, h("tbody", {}, KEYS.map(([keys, what]) => h("tr", {}, h("td", {}, h("kbd", {}, keys)), h("td", {}, what))))), h("p", {}, h("button", { onclick: () => help.close() }, "Close")));
  help.showModal();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download") || link.dataset.outside) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || ![...PAGES, ...HIDDEN].some((p) => p.path === url.pathname)) return;
  if (link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  history.pushState(null, "", url.pathname + url.search);
  open();
  window.scrollTo(0, 0);
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key >= "1" && event.key <= "5") go(PAGES[Number(event.key) - 1].path);
  else if (event.key === "t") toggleTheme();
  else if (event.key === "?") showHelp();
  else if (event.key === "/") { const field = root.querySelector("input[type=search]"); if (field) { event.preventDefault(); field.focus(); } }
  else if (current?.key?.(event)) event.preventDefault();
});

window.addEventListener("popstate", open);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); current?.repaint?.(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) current?.repaint?.(); });
drawStatus(true);
poll();
