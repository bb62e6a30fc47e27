// Channels of incidents, whether the last message was taken, and a test of each. Their addresses are never sent here.
import { write } from "./data.js";
import { badge, card, empty, h } from "./dom.js";
import { table } from "./table.js";
import { ago, plural, whole } from "./units.js";

export function alertsCard(alerts) {
  const said = h("p", { class: "note", role: "status" });
  const test = (channel) => async () => { try { const went = await write("/api/alerts/test", "POST", { channel: channel.name }); said.textContent = went.last_ok ? `${channel.name}: the test was taken` : `${channel.name}: ${went.last_why}`; } catch (error) { said.textContent = error.message; } };
  const built = table("channels", [
    { name: "channel", get: (c) => c.name }, { name: "type", get: (c) => c.type }, { name: "last message", get: (c) => c.last_ns, show: (c) => (c.last_ok === null ? "none yet" : [badge(c.last_ok ? "taken" : "failed", c.last_ok ? "good" : "bad"), ` ${ago(c.last_ns)} ${c.last_why}`]) },
    { name: "sent", num: true, get: (c) => c.num_sent }, { name: "waiting", num: true, get: (c) => c.num_waiting, show: (c) => (c.num_waiting ? badge(whole(c.num_waiting), "warn") : "0") }, { name: "given up", num: true, get: (c) => c.num_lost, show: (c) => (c.num_lost ? badge(whole(c.num_lost), "bad") : "0") },
    { name: "try", show: (c) => h("button", { disabled: !alerts.writable, onclick: test(c), "aria-label": `Send a test to ${c.name}` }, "Test") },
  ], alerts.channels, { caption: "Channels", search: false });
  const none = empty("No channel is configured", "Name them in a file: webhook, Slack-compatible, Alertmanager or PagerDuty.", "prism serve out/ --state DIR --alerts alerts.yaml");
  return card("Who is told", h("div", {}, alerts.channels.length ? built.node : none, said), { about: `${plural(alerts.num_firing, "incident")} told and not over` });
}
