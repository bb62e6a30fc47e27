// A range of time in the address: ?from=...&to=... in nanoseconds, chosen in local time.
import * as address from "./address.js";
import { h } from "./dom.js";

const DAYS = [["1", "24 hours"], ["7", "7 days"], ["30", "30 days"], ["365", "a year"]];
const NS = 1_000_000n;

export function rangeOf() {
  const days = address.get("days");
  if (days) return { from_ns: String(BigInt(Math.floor(Date.now() / 60_000) * 60_000 - Number(days) * 86_400_000) * NS) };
  return { from_ns: address.get("from"), to_ns: address.get("to") };
}

const local = (ns) => { if (!ns) return ""; const date = new Date(Number(BigInt(ns) / NS)); return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16); };
const toNs = (text) => (text ? String(BigInt(new Date(text).getTime()) * NS) : "");

export function range({ otherwise = "all of it" } = {}) {
  const go = (values) => { address.set({ days: "", from: "", to: "", offset: "", ...values }, { push: true }); dispatchEvent(new PopStateEvent("popstate")); };
  const days = address.get("days"), chosen = days || (address.get("from") || address.get("to") ? "own" : "");
  const field = (name, label) => h("input", { type: "datetime-local", name, "aria-label": label, value: local(address.get(name)) });
  return h("form", { class: "chips range", "aria-label": "Range of time", onsubmit: (event) => { event.preventDefault(); const form = new FormData(event.target); go({ from: toNs(form.get("from")), to: toNs(form.get("to")) }); } },
    h("select", { "aria-label": "Range", onchange: (event) => { if (event.target.value !== "own") go({ days: event.target.value }); } }, h("option", { value: "", selected: chosen === "" }, otherwise), DAYS.map(([value, text]) => h("option", { value, selected: chosen === value }, `the last ${text}`)), chosen === "own" ? h("option", { value: "own", selected: true }, "from, to") : null),
    field("from", "From"), field("to", "To"), h("button", {}, "Show"));
}
