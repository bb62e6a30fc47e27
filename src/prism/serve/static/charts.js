// Charts as SVG, drawn when they become visible. Everything from a file is a text node: no name becomes markup or a link.
import { clear, h, svg } from "./dom.js";
import { exportTools } from "./export.js";
import { number } from "./units.js";

const drawn = new Map(); // node -> how to draw it, to redraw it in another size

// Chosen by calculation from Paul Tol's schemes: any two kinds are at least 19 apart in CIELAB, also with deuteranopia and protanopia.
export const COLOURS = {
  compute: "#325b81", dp: "#eb8222", pp: "#14783e", tp: "#ca53b9", cp: "#7c1a45", ep: "#d58ebb", embedding: "#8a6500", storage: "#c2ce97",
  unknown: "#7b7a79", wait: "#d6cac4", host: "#00bcf8", microbatch: "#99bbdd", step: "#b6bdc9",
  load: "#c2ce97", infer: "#325b81", score: "#14783e", other: "#7b7a79",
};
// Colours of lines and marks, by theme (style.css): dark colours are lighter on a dark background.
export const SERIES = Array.from({ length: 10 }, (_, i) => `var(--series-${i})`);
const DASHES = ["", "7 3", "2 3", "10 3 2 3", "12 4", "1 2", "6 6", "3 5", "8 2 2 2", "5 2 1 2"];
const SHAPES = ["circle", "diamond", "triangle-up", "square", "x", "triangle-left"];
export const jobColour = (i) => SERIES[i % SERIES.length];
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const MARGIN = { l: 56, r: 14, t: 10, b: 42 }, TEXT = 11.5;

export function chart(label, make, { size = "", onclick } = {}) {
  const node = h("div", { class: `chart ${size}`, role: "img", "aria-label": label });
  const draw = () => { if (node.isConnected && node.clientWidth) { new Plot(node, label, make(), onclick).draw(); node.dataset.drawn = "yes"; } };
  drawn.set(node, draw);
  const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); draw(); } }, { rootMargin: "300px" });
  seen.observe(node);
  return h("div", { class: "charted" }, node, exportTools(label, () => ({ drawing: node.querySelector("svg[viewBox]"), traces: make().traces })));
}

export function redraw() {
  for (const [node, draw] of drawn) {
    if (!node.isConnected) drawn.delete(node);
    else if (node.dataset.drawn) draw();
  }
}
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 150); });

class Axis {
  constructor(spec, values, { start, end, zero = false }) {
    this.start = start; this.end = end; this.log = spec.type === "log"; this.title = typeof spec.title === "string" ? spec.title : spec.title?.text;
    this.names = spec.type === "category" || values.some((v) => typeof v === "string") ? [...new Set(values.filter((v) => v !== null && v !== undefined).map(String))] : null;
    if (this.names) { if (spec.autorange === "reversed") [this.start, this.end] = [end, start]; return; }
    const finite = values.filter((v) => Number.isFinite(v) && (!this.log || v > 0));
    let [low, high] = spec.range || [finite.reduce((a, b) => Math.min(a, b), Infinity), finite.reduce((a, b) => Math.max(a, b), -Infinity)];
    if (!Number.isFinite(low)) { low = this.log ? 1 : 0; high = this.log ? 10 : 1; }
    if (!spec.range && !this.log) {
      if (zero || spec.rangemode === "tozero") { low = Math.min(0, low); high = Math.max(0, high); }
      const margin = (high - low || Math.abs(high) || 1) * 0.05;
      high += margin;
      if (low !== 0) low -= margin;
    }
    if (this.log && low === high) { low /= 2; high *= 2; }
    else if (this.log && !spec.range) { const margin = (high / low) ** 0.03; low /= margin; high *= margin; }
    this.low = low; this.high = high;
  }
  get step() { return Math.abs(this.end - this.start) / Math.max(1, this.names?.length || 1); }
  at(value) {
    if (this.names) return this.start + ((this.names.indexOf(String(value)) + 0.5) / this.names.length) * (this.end - this.start);
    const f = this.log ? Math.log10 : (v) => v;
    return this.start + ((f(value) - f(this.low)) / (f(this.high) - f(this.low) || 1)) * (this.end - this.start);
  }
  ticks() {
    if (this.names) {
      const every = Math.max(1, Math.ceil(this.names.length / Math.max(2, Math.floor(Math.abs(this.end - this.start) / (this.vertical ? 16 : 46)))));
      return this.names.filter((_, i) => i % every === 0).map((name) => [name, name.length > 16 ? `${name.slice(0, 15)}…` : name]);
    }
    if (this.log) {
      const out = [];
      for (let power = Math.floor(Math.log10(this.low)); power <= Math.ceil(Math.log10(this.high)); power++) if (10 ** power >= this.low * 0.999 && 10 ** power <= this.high * 1.001) out.push(10 ** power);
      const every = Math.max(1, Math.ceil(out.length / 7));
      return out.filter((_, i) => i % every === 0).map((v) => [v, v >= 1e6 ? `10^${Math.round(Math.log10(v))}` : number(v)]);
    }
    const rough = (this.high - this.low) / 6, power = 10 ** Math.floor(Math.log10(rough || 1)), step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || power;
    const out = [], places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    for (let v = Math.ceil(this.low / step) * step; v <= this.high + step * 1e-9; v += step) out.push([v, (v + 0).toLocaleString("en", { maximumFractionDigits: Math.min(9, places) })]);
    return out;
  }
}

class Plot {
  constructor(node, label, { traces, layout = {} }, onclick) {
    Object.assign(this, { node, label, traces, layout, onclick, marks: [] });
    this.width = node.clientWidth; this.height = node.clientHeight || 260;
  }

  draw() {
    const named = this.traces.filter((t) => t.name && t.type !== "heatmap");
    const legend = this.layout.showlegend === false || named.length < 2 ? null : h("div", { class: "legend" }, named.slice(0, 40).map((t) => h("span", {}, this.key(t), t.name)));
    const room = legend ? Math.min(110, 24 * Math.ceil(named.reduce((sum, t) => sum + 34 + 7 * t.name.length, 0) / this.width)) : 0;
    const m = { ...MARGIN, ...this.layout.margin }, bottom = this.height - room - m.b;
    const bars = this.traces.some((t) => t.type === "bar"), flat = bars && this.traces.some((t) => t.orientation === "h"), stack = this.layout.barmode === "stack";
    const all = (name) => this.traces.flatMap((t) => t[name] || []);
    const sums = stack ? this.stackSums(flat) : null;
    const xs = flat && sums ? [...sums.values()] : all("x"), ys = all("y");
    this.x = new Axis(this.layout.xaxis || {}, [...xs, ...this.shapes().flatMap((s) => [s.x0, s.x1])], { start: m.l, end: this.width - m.r, zero: flat });
    this.y = new Axis(this.layout.yaxis || {}, ys, { start: bottom, end: m.t, zero: bars && !flat });
    this.y.vertical = true;
    if (this.y.names && this.layout.yaxis?.autorange === "reversed") { this.y.start = m.t; this.y.end = bottom; } else if (this.y.names) { this.y.start = bottom; this.y.end = m.t; }
    const frame = [...this.grid(m, bottom), ...this.shapes().map((s) => this.shape(s, m, bottom))];
    const body = this.traces.flatMap((t, i) => (t.type === "heatmap" ? this.heat(t) : t.type === "bar" ? this.bar(t, i, flat, stack) : this.line(t, i)));
    const canvas = svg("svg", { width: this.width, height: this.height - room, viewBox: `0 0 ${this.width} ${this.height - room}`, "aria-hidden": "true" }, frame, body);
    const tip = h("div", { class: "hint", style: { position: "absolute", display: "none" } });
    clear(this.node, canvas, legend, tip, this.words());
    this.listen(canvas, tip);
  }

  shapes() { return this.layout.shapes || []; }

  key(t) {
    const paint = t.marker?.color || t.line?.color || SERIES[0];
    if (t.type === "bar" || !t.mode) return h("span", { class: "sw", style: { background: paint } });
    const i = this.traces.indexOf(t), lined = t.mode.includes("lines");
    return svg("svg", { width: 22, height: 10, "aria-hidden": "true" }, lined ? svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: paint, "stroke-width": 2, "stroke-dasharray": DASHES[i % DASHES.length] }) : null,
      t.mode.includes("markers") ? symbol(t.marker?.symbol || SHAPES[i % SHAPES.length], 11, 5, 3.4, paint) : null);
  }

  grid(m, bottom) {
    const ink = { fill: "var(--soft)", "font-size": TEXT }, out = [];
    for (const [value, text] of this.y.ticks()) {
      const y = this.y.at(value);
      if (!this.y.names) out.push(svg("line", { x1: m.l, x2: this.width - m.r, y1: y, y2: y, stroke: "var(--line-soft)" }));
      out.push(svg("text", { ...ink, x: m.l - 6, y: y + 4, "text-anchor": "end" }, text));
    }
    for (const [value, text] of this.x.ticks()) {
      const x = this.x.at(value);
      if (!this.x.names) out.push(svg("line", { x1: x, x2: x, y1: m.t, y2: bottom, stroke: "var(--line-soft)" }));
      out.push(svg("text", { ...ink, x, y: bottom + 16, "text-anchor": "middle" }, text));
    }
    out.push(svg("line", { x1: m.l, x2: this.width - m.r, y1: bottom, y2: bottom, stroke: "var(--line)" }));
    if (this.x.title) out.push(svg("text", { ...ink, x: (m.l + this.width - m.r) / 2, y: bottom + 34, "text-anchor": "middle" }, this.x.title));
    if (this.y.title) out.push(svg("text", { ...ink, transform: `translate(13 ${(m.t + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.y.title));
    return out;
  }

  shape(s, m, bottom) {
    const x0 = this.x.at(s.x0), x1 = this.x.at(s.x1);
    if (s.type === "line") return svg("line", { x1: x0, x2: x1, y1: m.t, y2: bottom, stroke: s.line.color, "stroke-width": s.line.width || 1, "stroke-dasharray": s.line.dash === "dot" ? "2 3" : "" });
    return svg("rect", { x: Math.min(x0, x1), width: Math.max(1, Math.abs(x1 - x0)), y: m.t, height: bottom - m.t, fill: s.fillcolor, opacity: s.opacity ?? 0.15 });
  }

  line(t, i) {
    const paint = t.line?.color || t.marker?.color || SERIES[i % SERIES.length], points = [];
    t.x.forEach((x, n) => {
      const y = t.y[n];
      if (x === null || y === null || x === undefined || y === undefined || Number.isNaN(y) || (this.x.log && x <= 0)) { points.push(null); return; }
      points.push([this.x.at(x), this.y.at(y)]);
      this.marks.push({ x: points[n][0], y: points[n][1], text: say(t, n), index: n });
    });
    const out = [];
    if ((t.mode || "lines").includes("lines")) {
      let path = "", pen = "M", last = null;
      for (const p of points) { if (!p) { pen = "M"; last = null; continue; } path += t.line?.shape === "hv" && last ? `H${p[0].toFixed(1)}V${p[1].toFixed(1)}` : `${pen}${p[0].toFixed(1)} ${p[1].toFixed(1)}`; pen = "L"; last = p; }
      out.push(svg("path", { d: path, fill: "none", stroke: paint, "stroke-width": t.line?.width || 1.6, "stroke-dasharray": DASHES[i % DASHES.length], "stroke-linejoin": "round" }));
    }
    if ((t.mode || "").includes("markers")) for (const p of points) if (p) out.push(symbol(t.marker?.symbol || SHAPES[i % SHAPES.length], ...p, (t.marker?.size || 6) / 2, paint));
    return out;
  }

  stackSums(flat) {
    const sums = new Map();
    for (const t of this.traces) (flat ? t.y : t.x).forEach((name, n) => sums.set(name, (sums.get(name) || 0) + ((flat ? t.x : t.y)[n] || 0)));
    return sums;
  }

  bar(t, i, flat, stack) {
    const paint = t.marker?.color || SERIES[i % SERIES.length], out = [], band = flat ? this.y : this.x, scale = flat ? this.x : this.y;
    this.piled ??= new Map();
    const bars = this.traces.filter((other) => other.type === "bar"), place = bars.indexOf(t), thick = (band.step * 0.78) / (stack ? 1 : bars.length);
    (flat ? t.y : t.x).forEach((name, n) => {
      const value = (flat ? t.x : t.y)[n];
      if (!Number.isFinite(value)) return;
      const base = stack ? this.piled.get(name) || 0 : t.base?.[n] || 0;
      this.piled.set(name, base + value);
      const a = scale.at(base), b = scale.at(base + value), across = band.at(name) - (band.step * 0.78) / 2 + (stack ? 0 : place * thick);
      const box = flat ? { x: Math.min(a, b), width: Math.abs(b - a), y: across, height: thick } : { y: Math.min(a, b), height: Math.abs(b - a), x: across, width: thick };
      this.marks.push({ x: box.x + box.width / 2, y: box.y + box.height / 2, box, text: say(t, n), index: n });
      out.push(svg("rect", { ...box, fill: Array.isArray(paint) ? paint[n] : paint, stroke: "var(--card)", "stroke-width": 0.8 }));
    });
    return out;
  }

  heat(t) {
    const most = Math.max(1, ...t.z.flat()), wide = this.x.step * (this.x.names ? 1 : 0) || Math.abs(this.x.at(t.x[1]) - this.x.at(t.x[0])), high = this.y.step, out = [];
    t.z.forEach((row, r) => row.forEach((value, n) => {
      const box = { x: this.x.at(t.x[n]) - wide / 2, y: this.y.at(t.y[r]) - high / 2, width: Math.max(1, wide - 1), height: Math.max(1, high - 1) };
      this.marks.push({ x: box.x + wide / 2, y: box.y + high / 2, box, text: say({ ...t, y: t.y.map((_, j) => t.y[j]) }, n, r), index: n });
      out.push(svg("rect", { ...box, fill: `color-mix(in oklab, var(--heat-high) ${Math.round((100 * value) / most)}%, var(--heat-low))` }));
    }));
    return out;
  }

  // The same figures as text for screen readers; long series by their ends and extremes.
  words() {
    const rows = this.traces.slice(0, 40).map((t) => {
      if (t.type === "heatmap") return `${this.label}: up to ${number(Math.max(...t.z.flat()))}`;
      const values = (t.orientation === "h" || this.y.names ? t.x : t.y).filter((v) => Number.isFinite(v));
      if (!values.length) return `${t.name || this.label}: no value`;
      return `${t.name || this.label}: ${values.length} values from ${number(values[0])} to ${number(values.at(-1))}, least ${number(values.reduce((a, b) => Math.min(a, b)))}, most ${number(values.reduce((a, b) => Math.max(a, b)))}`;
    });
    this.node.setAttribute("aria-label", `${this.label}. ${rows.join(". ")}`.slice(0, 1500));
    return null;
  }

  nearest(event, canvas) {
    const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
    const inside = this.marks.find(({ box }) => box && x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height);
    if (inside) return inside;
    let best = null, least = 40 ** 2;
    for (const mark of this.marks) { if (mark.box) continue; const d = (mark.x - x) ** 2 + 0.3 * (mark.y - y) ** 2; if (d < least) { least = d; best = mark; } }
    return best;
  }

  listen(canvas, tip) {
    const tell = (event) => {
      const mark = this.nearest(event, canvas);
      tip.style.display = mark ? "block" : "none";
      if (!mark) return;
      clear(tip, document.createTextNode(mark.text));
      tip.style.left = `${Math.max(0, Math.min(mark.x + 12, this.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(0, mark.y - tip.offsetHeight - 8)}px`;
    };
    canvas.addEventListener("pointermove", tell);
    canvas.addEventListener("pointerdown", tell); // a finger does not hover; the text of a tap stays
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") tip.style.display = "none"; });
    if (this.onclick) canvas.addEventListener("click", (event) => { const mark = this.nearest(event, canvas); if (mark) this.onclick({ pointIndex: mark.index }); });
  }
}

// A hover text with %{x}, %{y}, %{z} and %{text} filled in; the content of <extra> comes first.
function say(t, n, row = n) {
  const value = { x: t.x?.[n], y: t.y?.[row], z: t.z?.[row]?.[n], text: t.text?.[n] };
  const fill = (text) => text.replace(/%\{([a-z]+)[^}]*\}/g, (_, name) => { const v = value[name]; return typeof v === "number" ? number(v, 4) : String(v ?? ""); });
  const [body, extra = ""] = (t.hovertemplate || "%{x}: %{y}").split("<extra>");
  return [fill(extra.replace("</extra>", "")), fill(body)].filter(Boolean).join(": ");
}

function symbol(kind, x, y, r, paint) {
  const p = (points) => svg("path", { d: `M${points.map(([a, b]) => `${(x + a * r).toFixed(1)} ${(y + b * r).toFixed(1)}`).join("L")}Z`, fill: paint, stroke: "var(--card)", "stroke-width": 0.7 });
  switch (kind) {
    case "diamond": return p([[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]]);
    case "triangle-up": return p([[0, -1.3], [1.2, 1], [-1.2, 1]]);
    case "triangle-left": return p([[-1.3, 0], [1, -1.2], [1, 1.2]]);
    case "square": return p([[-1, -1], [1, -1], [1, 1], [-1, 1]]);
    case "x": case "x-thin": return svg("path", { d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`, stroke: paint, "stroke-width": 2.2, fill: "none" });
    default: return svg("circle", { cx: x, cy: y, r, fill: paint, stroke: "var(--card)", "stroke-width": 0.7 });
  }
}
