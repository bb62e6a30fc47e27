// Elements are made from values, never from markup: the content of a log or a flow stays text.

export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  fill(node, attributes, children);
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(node, attributes, children);
  return node;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(9)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

export const clear = (node, ...children) => { node.replaceChildren(...children.flat(9).filter(Boolean)); return node; };

export function card(title, body, { about, tools, id } = {}) {
  const head = h("header", {}, h("h2", {}, title), about && h("span", { class: "about" }, about), h("span", { class: "grow" }), tools);
  return h("section", { class: "card", id, "aria-label": title }, head, body);
}

export const empty = (title, text, command) =>
  h("div", { class: "empty" }, h("b", {}, title), text, command && h("div", {}, h("code", {}, command)));

export const tile = (value, label, tone) => h("div", { class: `tile ${tone || ""}` }, h("b", {}, value), h("span", {}, label));

export const badge = (text, tone, title) => h("span", { class: `badge ${tone || ""}`, title }, text);

const HEALTH = { ok: "good", done: "good", degraded: "warn", waiting: "info", hung: "bad", failed: "bad", unknown: "" };
export const health = (word, title) => badge(word, HEALTH[word], title);

export function sparkline(values, { width = 110, height = 24, zero = true } = {}) {
  if (!values.length) return h("span", { class: "note" }, "–");
  const top = Math.max(...values) || 1, low = zero ? 0 : Math.min(...values);
  const x = (i) => (values.length === 1 ? width / 2 : 1 + (i * (width - 2)) / (values.length - 1));
  const y = (v) => height - 2 - ((v - low) / (top - low || 1)) * (height - 5);
  const line = values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${values.length} values up to ${top}` },
    svg("path", { d: `${line}L${x(values.length - 1)} ${height}L${x(0)} ${height}Z`, fill: "var(--accent-soft)" }),
    svg("path", { d: line, fill: "none", stroke: "var(--accent)", "stroke-width": 1.4, "stroke-linejoin": "round" }));
}

export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
