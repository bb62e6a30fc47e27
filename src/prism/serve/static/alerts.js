// Channels of findings, whether the last message arrived, a test of each, and silences. Their addresses are never sent here.
import { at } from "./address.js";
import { badge, card, empty, h } from "./dom.js";
import { table } from "./table.js";
import { ago, clock, plural } from "./units.js";

async function write(path, method, body) {
  const answer = await fetch(at(path), { method, headers: { "Content-Type": "application/json", "X-Prism-Write": "1" }, body: body && JSON.stringify(body) });
  if (answer.ok) return answer.json();
  throw new Error(answer.status === 405 ? "Nothing can be written: the service was started without --state." : (await answer.json()).error.message);
}

export function alertsCard(alerts, redraw) {
  const said = h("p", { class: "note", role: "status" });
  const attempt = (work) => async (event) => { event.preventDefault(); try { said.textContent = (await work(event)) || ""; } catch (error) { said.textContent = error.message; } };
  const test = (channel) => attempt(async () => { const went = await write("/api/alerts/test", "POST", { channel: channel.name }); return went.last_ok ? `${channel.name}: the test was taken` : `${channel.name}: ${went.last_why}`; });
  const channels = table("channels", [
    { name: "channel", get: (c) => c.name }, { name: "type", get: (c) => c.type }, { name: "last message", get: (c) => c.last_ns, show: (c) => (c.last_ok === null ? "none yet" : [badge(c.last_ok ? "taken" : "failed", c.last_ok ? "good" : "bad"), ` ${ago(c.last_ns)} ${c.last_why}`]) },
    { name: "sent", num: true, get: (c) => c.num_sent }, { name: "try", show: (c) => h("button", { disabled: !alerts.writable, onclick: test(c), "aria-label": `Send a test to ${c.name}` }, "Test") },
  ], alerts.channels, { caption: "Channels", search: false });
  const silences = alerts.silences.map((s) => h("li", {}, `${["job", "kind", "culprit"].filter((name) => s[name]).map((name) => `${name} ${s[name]}`).join(", ") || "everything"} until ${clock(s.until_ns, { date: true })}`, s.reason ? `: ${s.reason}` : "", s.author ? ` (${s.author}) ` : " ",
    alerts.writable ? h("button", { class: "plain", onclick: attempt(async () => { await write(`/api/silences?id=${encodeURIComponent(s.id)}`, "DELETE"); await redraw(); }) }, "End") : null));
  const silence = attempt(async (event) => {
    const form = Object.fromEntries(new FormData(event.target)), until = BigInt(Date.now()) * 1000000n + BigInt(Math.round(Number(form.hours) * 3600)) * 1000000000n;
    const { hours, ...named } = form;
    await write("/api/silences", "POST", { ...named, until_ns: Number(until) });
    await redraw();
  });
  const field = (name, label) => h("input", { name, type: "search", "aria-label": label, placeholder: label });
  return card("Alerts", h("div", {}, alerts.channels.length ? channels.node : empty("No channel is configured", "Name channels in a file: webhook, Slack-compatible or Alertmanager.", "prism serve out/ --state DIR --alerts alerts.yaml"),
    h("h3", {}, "Silences"), silences.length ? h("ul", { class: "notes" }, silences) : h("p", { class: "note" }, "No silence is active."),
    alerts.writable ? h("form", { class: "chips", onsubmit: silence }, field("job", "Job, or all"), field("kind", "Kind, or all"), field("culprit", "Culprit, or all"), field("reason", "Why"),
      h("select", { name: "hours", "aria-label": "For how long" }, [["1", "1 hour"], ["8", "8 hours"], ["24", "a day"], ["168", "a week"]].map(([value, text]) => h("option", { value }, text))), h("button", {}, "Silence")) : h("p", { class: "note" }, "The service was started without --state: nothing can be silenced or tested."), said),
  { about: plural(alerts.num_firing, "alert fires", "alerts fire") });
}
