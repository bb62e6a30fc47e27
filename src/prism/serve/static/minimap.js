// The whole timeline as a strip, with a frame around the visible part; drag the frame or click to move it.
import { colour } from "./charts.js";
import { load } from "./data.js";
import { h } from "./dom.js";

const HEIGHT = 34, MOST_ROWS = 1024; // all ranks of most jobs; of larger ones the strip says how many it shows

export class Minimap {
  constructor(timeline) {
    this.timeline = timeline;
    this.picture = null;
    this.canvas = h("canvas", { class: "minimap", "aria-hidden": "true" }); // the keys of the timeline itself do the same
    const go = (event) => { const box = this.canvas.getBoundingClientRect(); this.moveTo(event.clientX - box.left); };
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); this.held = true; go(event); });
    this.canvas.addEventListener("pointermove", (event) => { if (this.held) go(event); });
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => { this.held = false; });
  }

  forget() { this.stale = true; this.draw(); }

  get extent() { const { first_ns: first, last_ns: last } = this.timeline.shown; return { first, span: Math.max(1, last - first) }; }

  moveTo(x) {
    const { timeline } = this;
    if (!timeline.shown) return;
    const { first, span } = this.extent, middle = first + ((x - timeline.gutter) / timeline.plotWidth) * span, half = (timeline.state.to - timeline.state.from) / 2;
    timeline.setWindow(middle - half, middle + half);
  }

  async fetch() {
    const { timeline } = this, { first, span } = this.extent;
    this.asked = true; this.stale = false;
    try {
      const rows = Math.min(MOST_ROWS, timeline.state.by === "rank" ? timeline.numRows : MOST_ROWS);
      const document = await load("timeline", { key: timeline.key, from_ns: Math.floor(first), to_ns: Math.ceil(first + span), width: Math.max(16, Math.min(1024, Math.round(timeline.plotWidth))), first_row: 0, num_rows: rows, by: "rank", hide: "", expected: "" });
      const { picture } = document;
      this.canvas.title = picture.num_rows > picture.labels.length ? `The strip shows the first ${picture.labels.length} of ${picture.num_rows} ranks` : `The strip shows all ${picture.num_rows} ranks`;
      this.canvas.dataset.rows = String(picture.labels.length);
      this.picture = picture.pixels ? timeline.paintPixels(picture.pixels, picture.width, picture.labels.length, document.kinds) : null;
    } catch { this.picture = null; }
    this.asked = false;
    this.draw();
  }

  draw() {
    const { timeline, canvas } = this;
    if (!timeline.shown || !timeline.width) return;
    if ((this.fetched !== timeline.width || this.stale) && !this.asked) { this.fetched = timeline.width; this.fetch(); }
    const scale = window.devicePixelRatio || 1, wide = Math.round(timeline.width * scale);
    if (canvas.width !== wide) { canvas.width = wide; canvas.height = Math.round(HEIGHT * scale); canvas.style.height = `${HEIGHT}px`; }
    const c = canvas.getContext("2d"), { gutter, plotWidth } = timeline, { first, span } = this.extent, x = (ns) => gutter + ((ns - first) / span) * plotWidth;
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, timeline.width, HEIGHT);
    c.fillStyle = colour("--line-soft"); c.fillRect(gutter, 2, plotWidth, HEIGHT - 4);
    if (this.picture) { c.imageSmoothingEnabled = false; c.drawImage(this.picture, gutter, 2, plotWidth, HEIGHT - 4); }
    c.fillStyle = colour("--bad");
    for (const { finding } of timeline.findings) c.fillRect(x(finding.from_ns), HEIGHT - 5, Math.max(2, x(finding.to_ns) - x(finding.from_ns)), 3);
    const left = Math.max(gutter, x(timeline.state.from)), right = Math.min(gutter + plotWidth, x(timeline.state.to));
    c.fillStyle = colour("--bg"); c.globalAlpha = 0.62; c.fillRect(gutter, 0, left - gutter, HEIGHT); c.fillRect(right, 0, gutter + plotWidth - right, HEIGHT); c.globalAlpha = 1;
    c.strokeStyle = colour("--accent"); c.lineWidth = 2; c.strokeRect(left + 1, 1, Math.max(4, right - left - 2), HEIGHT - 2); c.lineWidth = 1;
    canvas.dataset.from = String(Math.round(left)); canvas.dataset.to = String(Math.round(right));
  }
}
