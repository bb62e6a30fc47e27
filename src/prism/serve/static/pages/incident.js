// One incident: what it is, what to do, what each source says of it, and its history.
import * as address from "../address.js";
import { load } from "../data.js";
import { badge, card, clear, empty, h } from "../dom.js";
import { ago, clock, number, percent, words } from "../units.js";
import { act, sayLost, stateBadge } from "./now.js";

const SIGHT = { sees: ["sees it", "bad"], well: ["says it is well", "good"], lost: ["does not know", "warn"] };

export async function incident() {
  const id = address.get("id"), node = h("div", {}), said = h("p", { class: "note", role: "status" });
  if (!id) return { node: card("Incident", empty("No incident is chosen", "They are on the front page.")) };
  let data;
  const attempt = async (what) => { try { await act(id, what); said.textContent = what === "closed" ? "closed, until a source sees it again" : "taken up"; } catch (error) { said.textContent = error.message; } };
  const draw = async () => {
    data = await load("incident", { id });
    const one = data.incident, over = ["resolved", "expired"].includes(one.state);
    clear(node, h("div", { class: "head" }, h("h1", {}, one.title), h("span", { class: "sub" }, one.id)),
      h("p", { class: "chips" }, stateBadge(one), badge(`${one.severity}, for ${one.owner}`), badge(`${percent(one.confidence)} sure`), one.told ? badge("people were told", "info") : badge("nobody was told")),
      one.why_state ? h("p", { class: "verdict" }, one.why_state) : null,
      card("What to do", h("div", {}, h("p", { class: "do" }, one.action), over ? null : h("p", { class: "chips" },
        h("button", { disabled: !data.writable || Boolean(one.acknowledged_by), onclick: () => attempt("acknowledged"), title: "A" }, one.acknowledged_by ? `Taken up by ${one.acknowledged_by}` : "Take up"),
        h("button", { disabled: !data.writable, onclick: () => attempt("closed") }, "It is over"), data.writable ? null : h("span", { class: "note" }, "The service was started without --state: nothing can be written.")), said)),
      card("What is known", facts(one)), witnesses(data.witnesses), card("History", h("ol", { class: "story" }, data.history.map((line) => h("li", { class: { opened: "bad", resolved: "good", "lost sight of": "warning" }[line.what] || "" }, h("time", { title: ago(line.at_ns) }, clock(line.at_ns, { date: true })), h("b", {}, line.what), line.text ? ` ${line.text}` : ""))), { about: "newest first" }));
  };
  await draw();
  return { node, refresh: draw, key: (event) => { if (event.key === "a" && data.writable) { attempt("acknowledged"); return true; } return false; } };
}

function facts(one) {
  const job = one.job && one.job_key && !["log", "source", "part"].includes(one.place_type) ? h("a", { href: one.job_key.endsWith("~run") ? address.link("/failures", { run: one.job_key }) : address.link("/job", { key: one.job_key }) }, one.job) : one.job;
  const rows = [["kind", words(one.kind)], ["where", `${one.place_type} ${one.place}`], ["job", job], ["hosts", one.hosts.map((host) => [h("a", { href: address.link("/history", { host }) }, host), " "])], ["cause", one.cause],
    ["since", `${clock(one.since_ns, { date: true })} (${ago(one.since_ns)})`], ["seen until", `${clock(one.until_ns, { date: true })} (${ago(one.until_ns)})`], ["cost", sayLost(one)], ["worst first", one.badness ? `${number(one.gpus_lost)} GPU-hours an hour × ${percent(one.confidence)} = ${number(one.badness)}` : ""]];
  return h("dl", { class: "facts" }, rows.filter(([, value]) => value && (!Array.isArray(value) || value.length)).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function witnesses(rows) {
  const row = (w) => h("li", {}, badge(...(SIGHT[w.sight] || [w.sight])), " ", h("b", {}, w.tool), " ", h("span", { class: "mono" }, w.source), h("p", {}, w.text), w.why ? h("p", { class: "note" }, w.why) : null,
    h("p", { class: "note" }, `${clock(w.since_ns, { date: true })} to ${clock(w.until_ns)}, written ${ago(w.written_ns)}, ${percent(w.confidence)} sure`, w.link ? [" · ", h("a", { href: address.at(`/${w.link}`) }, w.link.startsWith("job") ? "open the timeline there" : "open its page")] : null));
  return card("Evidence", h("ul", { class: "evidence" }, rows.map(row)), { about: "what each source says" });
}
