// GPU-hours of a range of time: bought, used, lost, to what and since when; in money if a price is set.
import * as address from "../address.js";
import { load } from "../data.js";
import { card, clear, empty, h, tile } from "../dom.js";
import { range, rangeOf } from "../range.js";
import { table } from "../table.js";
import { clock, cost, number, percent, plural, whole, words } from "../units.js";

export async function hours() {
  const node = h("div", {});
  const draw = async () => {
    const data = await load("hours", rangeOf()), money = (gpuHours) => cost(gpuHours * 3600, ", ");
    clear(node, h("div", { class: "head" }, h("h1", {}, "Hours"), h("span", { class: "sub" }, `${clock(data.from_ns, { date: true })} to ${clock(data.to_ns, { date: true })}, ${plural(data.num_jobs, "job")}`)), range({ otherwise: "the last 30 days" }),
      h("div", { class: "tiles" }, tile(number(data.bought), `GPU-hours held by jobs${money(data.bought)}`), tile(number(data.used), `used${money(data.used)}${data.bought ? `, ${percent(data.used / data.bought, 1)}` : ""}`), tile(number(data.lost), `lost${money(data.lost)}${data.bought ? `, ${percent(data.lost / data.bought, 1)}` : ""}`, data.lost ? "bad" : "")),
      lossesCard(data), daysCard(data.days), h("ul", { class: "notes" }, data.notes.map((note) => h("li", {}, note))));
  };
  await draw();
  return { node, refresh: draw };
}

function lossesCard({ losses, lost }) {
  if (!losses.length) return card("Lost to", empty("No incident fell into this range", "Widen the range, or see on the front page whether anybody was looking."));
  const built = table("losses", [
    { name: "to", get: (row) => words(row.kind) }, { name: "incidents", num: true, get: (row) => row.num, show: (row) => whole(row.num) }, { name: "GPU-hours", num: true, get: (row) => row.gpu_hours, show: (row) => number(row.gpu_hours) },
    { name: "share", num: true, get: (row) => (lost ? row.gpu_hours / lost : 0), show: (row) => percent(lost ? row.gpu_hours / lost : 0, 1) }, cost(1) ? { name: "cost", num: true, get: (row) => cost(row.gpu_hours * 3600) } : null,
    { name: "since", fold: 2, get: (row) => row.since_ns, show: (row) => clock(row.since_ns, { date: true }) }, { name: "the costliest", wide: true, fold: 1, get: (row) => row.worst_title, show: (row) => h("a", { href: address.link("/incident", { id: row.worst }) }, row.worst_title) },
  ].filter(Boolean), losses, { caption: "Lost to", sort: ["GPU-hours", true], search: false });
  return card("Lost to", built.node, { tools: built.tools });
}

function daysCard(days) {
  if (!days.length) return null;
  const top = Math.max(...days.map((day) => Math.max(day.bought, day.lost))) || 1, bar = (value, tone) => h("div", { class: "meter" }, h("i", { style: { width: `${(100 * value) / top}%`, background: `var(--${tone})` } }));
  const built = table("hours-days", [
    { name: "day (UTC)", get: (day) => day.day }, { name: "held", num: true, get: (day) => day.bought, show: (day) => number(day.bought) }, { name: "lost", num: true, get: (day) => day.lost, show: (day) => number(day.lost) },
    { name: "", wide: true, show: (day) => [bar(day.bought, "accent"), bar(day.lost, "bad")] },
  ], days, { caption: "By day", sort: ["day (UTC)", true], most: 31, search: false });
  return card("By day", built.node, { about: "GPU-hours; a loss counts on the day that it began", tools: built.tools });
}
