// Charts and timelines are exported as PNG and CSV.
import { download, h } from "./dom.js";
import { csv } from "./table.js";

const SCALE = 2; // for screens and slides of a higher resolution

// An SVG as a picture: the colours of the theme are written into it, because a picture has no style sheet.
export async function pictureOf(drawing) {
  const copy = drawing.cloneNode(true), from = [drawing, ...drawing.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of ["fill", "stroke"]) if (node.hasAttribute(name)) to[i].setAttribute(name, style[name]);
    if (node.tagName === "text") to[i].setAttribute("font-family", style.fontFamily);
  });
  const [width, height] = [Number(drawing.getAttribute("width")), Number(drawing.getAttribute("height"))];
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  const canvas = h("canvas", { width: width * SCALE, height: height * SCALE }), pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card").trim() || "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// A row for every value of every series; for a bar that does not begin at 0, the value at its end.
export function valuesOf(traces) {
  const rows = traces.flatMap((t) => (t.type === "heatmap" ? t.z.flatMap((row, r) => row.map((z, n) => [t.name, t.x[n], t.y[r], z])) : (t.x || []).map((x, n) => [t.name, t.base ? x + t.base[n] : x, t.y[n], t.text?.[n]])));
  return csv(["series", "x", "y", "value"].map((name, i) => ({ name, get: (row) => row[i] })), rows);
}

// Buttons that are hidden until the pointer is on the chart or the keyboard reaches them.
export function exportTools(label, find) {
  const name = label.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60) || "chart";
  return h("span", { class: "exports" },
    h("button", { class: "plain", "aria-label": `${label} as PNG`, onclick: async () => { const drawing = find().drawing; if (drawing) download(`${name}.png`, await pictureOf(drawing)); } }, "PNG"),
    h("button", { class: "plain", "aria-label": `${label} as CSV`, onclick: () => download(`${name}.csv`, new Blob([valuesOf(find().traces)], { type: "text/csv" })) }, "CSV"));
}

export const savePicture = (canvas, name) => canvas.toBlob((blob) => download(`${name}.png`, blob), "image/png");
