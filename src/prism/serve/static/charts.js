// Charts by plotly, loaded when the first one is in sight; colours follow the page's theme.
import { h } from "./dom.js";

let loading = null;
const drawn = new Map(); // node -> how to draw it, to draw anew in another theme

export const COLOURS = {
  compute: "#4e79a7", dp: "#f28e2b", pp: "#59a14f", tp: "#e15759", cp: "#b07aa1", ep: "#ff9da7", embedding: "#9c755f", storage: "#d4ac2b",
  unknown: "#8d93a1", wait: "#a9b0bc", host: "#76b7b2", microbatch: "#a5b4c9", step: "#b6bdc9",
  load: "#d4ac2b", infer: "#4e79a7", score: "#59a14f", other: "#8d93a1",
};
export const SERIES = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#d4ac2b", "#9c755f", "#ff9da7", "#8d93a1"];
export const jobColour = (number) => SERIES[number % SERIES.length];

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/plotly.min.js" });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charting library did not load"));
    document.head.append(script);
  });
  return loading;
}

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function layoutOf(layout) {
  const axis = { gridcolor: ink("--line-soft"), linecolor: ink("--line"), zerolinecolor: ink("--line"), tickfont: { size: 11 }, title: { font: { size: 12 }, standoff: 6 }, automargin: true };
  const merged = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, DejaVu Sans, sans-serif", size: 12, color: ink("--soft") },
    margin: { l: 52, r: 14, t: 10, b: 40 }, hoverlabel: { bgcolor: ink("--card"), bordercolor: ink("--line"), font: { color: ink("--ink"), size: 12 } },
    legend: { orientation: "h", y: -0.2, x: 0, font: { size: 11.5 } }, hovermode: "closest", ...layout,
  };
  for (const name of ["xaxis", "yaxis", "yaxis2"]) if (name === "xaxis" || name === "yaxis" || layout[name]) merged[name] = { ...axis, ...layout[name], title: { ...axis.title, ...(typeof layout[name]?.title === "string" ? { text: layout[name].title } : layout[name]?.title) } };
  return merged;
}

export function chart(label, make, { size = "", onclick } = {}) {
  const node = h("div", { class: `chart ${size}`, role: "img", "aria-label": label });
  const draw = async () => {
    const plotly = await library();
    if (!node.isConnected) return;
    const { traces, layout } = make();
    await plotly.react(node, traces, layoutOf(layout || {}), { displayModeBar: false, responsive: true });
    node.dataset.drawn = "yes";
    if (onclick && !node.dataset.listens) { node.dataset.listens = "yes"; node.on("plotly_click", (event) => onclick(event.points[0])); }
  };
  drawn.set(node, draw);
  const seen = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) { seen.disconnect(); draw().catch((error) => node.replaceChildren(error.message)); }
  }, { rootMargin: "300px" });
  seen.observe(node);
  return node;
}

export function redraw() {
  for (const [node, draw] of drawn) {
    if (!node.isConnected) { drawn.delete(node); if (window.Plotly) window.Plotly.purge(node); }
    else if (node.dataset.drawn) draw();
  }
}

export const colour = ink;
