// The timeline: ranks by time on a canvas. The server aggregates spans to pixels; this file paints them.
import { COLOURS, colour } from "./charts.js";
import { load } from "./data.js";
import { clear, h } from "./dom.js";
import { Minimap } from "./minimap.js";
import { bytes, clock, nanoseconds, plural, whole, words } from "./units.js";

const RULER = 24, BAND = 18, LEAST_ROW = 4, MOST_ROW = 26, LEAST_WINDOW = 500, SCROLLBAR = 8;

const paint = new Map();
function rgb(kind) {
  if (!paint.has(kind)) {
    const text = COLOURS[kind] || COLOURS.unknown;
    paint.set(kind, [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  }
  return paint.get(kind);
}

export class Timeline {
  // options: key, state {from, to, row, by, hide, expected, height}, findings [{finding, ranks}], ranks [{rank, host, endpoint, stage}], lanes, steps(), tools(), onchange(state, push), onfirst(document)
  constructor(options) {
    this.options = options;
    this.key = options.key;
    this.findings = options.findings || [];
    this.places = new Map((options.ranks || []).map((place) => [place.rank, place]));
    this.state = { from: null, to: null, row: 0, by: "rank", hide: new Set(), expected: "", height: null, ...options.state };
    this.shown = null; // the document on the screen, and the window it was drawn for
    this.pictures = null;
    this.pointers = new Map();
    this.hover = null;
    this.canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": "Timeline. Arrow keys pan and scroll, plus and minus zoom, F fits, N and P go from step to step, J and K from finding to finding." });
    this.tip = h("div", { class: "tip", role: "tooltip" });
    this.where = h("div", { class: "where", "aria-live": "polite" });
    this.bar = h("div", { class: "bar" });
    this.words = h("p", { class: "unseen", id: "timeline-words" }); // a description of the picture, for screen readers
    this.canvas.setAttribute("aria-describedby", "timeline-words");
    this.map = new Minimap(this);
    this.node = h("div", { class: "timeline" }, this.bar, this.canvas, this.map.canvas, this.words, this.where);
    this.listen();
  }

  start() {
    document.body.append(this.tip);
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.node);
    this.resize();
  }

  stop() {
    this.watcher?.disconnect();
    this.tip.remove();
    this.abort?.abort();
    clearTimeout(this.timer);
    clearTimeout(this.hovering);
  }

  // -- geometry

  get gutter() {
    const most = this.node.clientWidth < 560 ? 74 : 150;
    return Math.min(most, this.labelWidth || 92);
  }
  get plotWidth() { return Math.max(40, this.width - this.gutter - SCROLLBAR); }
  get top() { return RULER + BAND + (this.findings.length ? BAND : 0) + 2; }
  get numRows() { return this.shown?.picture.num_rows ?? 1; }
  get rowHeight() {
    if (this.state.height) return this.state.height;
    const room = Math.max(260, Math.min(620, window.innerHeight * 0.62)) - this.top;
    const least = this.state.by === "lane" ? 13 : this.state.expected ? 17 : LEAST_ROW;
    return Math.max(least, Math.min(MOST_ROW, Math.floor(room / this.numRows)));
  }
  get visibleRows() {
    const room = Math.max(260, Math.min(620, window.innerHeight * 0.62)) - this.top;
    return Math.max(1, Math.min(this.numRows, Math.floor(room / this.rowHeight), 400));
  }
  x(ns) { return this.gutter + ((ns - this.state.from) / (this.state.to - this.state.from)) * this.plotWidth; }
  time(x) { return this.state.from + ((x - this.gutter) / this.plotWidth) * (this.state.to - this.state.from); }
  rowAt(y) { return y < this.top ? -1 : Math.floor((y - this.top) / this.rowHeight) + this.state.row; }

  resize() {
    const width = Math.floor(this.node.clientWidth);
    if (!width || width === this.width) return;
    this.width = width;
    this.request(0);
    this.draw();
  }

  // -- the visible window

  setWindow(from, to, { push = false } = {}) {
    const extent = this.shown;
    let span = Math.max(LEAST_WINDOW, to - from);
    if (extent) {
      const whole = Math.max(LEAST_WINDOW, extent.last_ns - extent.first_ns), slack = 0.03 * whole;
      span = Math.min(span, whole + 2 * slack);
      const middle = (from + to) / 2;
      from = middle - span / 2;
      from = Math.max(extent.first_ns - slack, Math.min(from, extent.last_ns + slack - span));
    }
    this.state.from = Math.round(from);
    this.state.to = Math.round(from + span);
    this.changed(push);
  }

  zoom(factor, around) {
    const { from, to } = this.state;
    const at = around ?? (from + to) / 2;
    this.setWindow(at - (at - from) * factor, at + (to - at) * factor);
  }

  pan(share) {
    const span = this.state.to - this.state.from;
    this.setWindow(this.state.from + share * span, this.state.to + share * span);
  }

  fit() {
    if (this.shown) this.setWindow(this.shown.first_ns - 0.01 * (this.shown.last_ns - this.shown.first_ns), this.shown.last_ns + 0.01 * (this.shown.last_ns - this.shown.first_ns), { push: true });
  }

  scrollTo(row) {
    const next = Math.max(0, Math.min(this.numRows - this.visibleRows, Math.round(row)));
    if (next === this.state.row) return false;
    this.state.row = next;
    this.changed();
    return true;
  }

  show(from, to, ranks = []) {
    const margin = 0.15 * (to - from);
    if (ranks.length && this.state.by === "rank" && this.shown) this.state.row = Math.max(0, Math.min(this.numRows - this.visibleRows, Math.min(...ranks) - 2));
    this.setWindow(from - margin, to + margin, { push: true });
  }

  goStep(way) {
    const steps = this.options.steps?.() || [], middle = (this.state.from + this.state.to) / 2;
    const found = way > 0 ? steps.find((s) => (s.from_ns + s.to_ns) / 2 > middle + 1) : steps.findLast((s) => (s.from_ns + s.to_ns) / 2 < middle - 1);
    if (found) this.setWindow(found.from_ns, found.to_ns, { push: true });
  }

  goFinding(way) {
    if (!this.findings.length) return;
    this.finding = ((this.finding ?? (way > 0 ? -1 : 0)) + way + this.findings.length) % this.findings.length;
    const { finding, ranks } = this.findings[this.finding];
    this.show(finding.from_ns, finding.to_ns, ranks);
  }

  changed(push = false) {
    this.options.onchange?.(this.state, push);
    this.draw();
    this.request(30);
  }

  // -- data

  request(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), wait);
  }

  async fetch() {
    if (!this.width) return;
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const known = this.shown !== null;
    const width = Math.max(16, Math.min(4096, Math.round(this.plotWidth * scale)));
    const rows = Math.min(known ? this.visibleRows : 128, Math.floor((1 << 20) / width));
    const state = { ...this.state };
    try {
      const document = await load("timeline", {
        key: this.key, from_ns: state.from, to_ns: state.to, width, first_row: state.row, num_rows: rows, by: state.by,
        hide: [...state.hide].sort().join(","), expected: state.by === "rank" ? state.expected : "",
      }, { signal: abort.signal });
      const first = !this.shown;
      const heightBefore = this.rowHeight, rowsBefore = this.visibleRows;
      this.shown = document;
      this.failed = null;
      if (state.from === null) { this.state.from = document.from_ns; this.state.to = document.to_ns; }
      this.state.row = Math.max(0, Math.min(this.state.row, this.numRows - this.visibleRows));
      this.measureLabels(document.picture.labels);
      this.pictures = this.makePictures(document, state.row);
      this.tell(document);
      this.draw();
      if (first) { this.drawBar(); this.options.onfirst?.(document); }
      // The first answer contains the number of rows, and so their height.
      if (this.state.row !== state.row || this.rowHeight !== heightBefore || this.visibleRows > Math.max(rowsBefore, document.picture.labels.length)) this.request(0);
      this.node.dataset.ready = String(Number(this.node.dataset.ready || 0) + 1);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.failed = error.message;
      this.draw();
    }
  }

  refresh() { this.request(0); this.map.forget(); }

  tell(document) {
    const { picture, steps, kinds_present: kinds } = document;
    const found = this.findings.slice(0, 10).map(({ finding }) => `${words(finding.kind)} of ${finding.culprit_type} ${finding.culprit} from ${nanoseconds(finding.from_ns)} to ${nanoseconds(finding.to_ns)}`);
    clear(this.words, [`${plural(picture.num_rows, "row")}, from ${nanoseconds(document.from_ns)} to ${nanoseconds(document.to_ns)}, ${plural(document.total_spans, "span")} in all, of kinds ${kinds.join(", ")}.`,
      steps.length ? `Steps ${steps[0].index} to ${steps.at(-1).index} are in sight.` : "", found.length ? `Findings: ${found.join("; ")}.` : "No finding is marked."].filter(Boolean).join(" "));
  }

  measureLabels(labels) {
    const context = this.canvas.getContext("2d");
    context.font = "11.5px system-ui, DejaVu Sans, sans-serif";
    const widest = Math.max(44, ...labels.slice(0, 200).map((label) => context.measureText(label).width));
    this.labelWidth = Math.ceil(widest) + 16;
  }

  makePictures(document, row) {
    const { picture, expected } = document;
    const window = { from: document.from_ns, to: document.to_ns, row };
    return {
      window,
      observed: picture.pixels ? this.paintPixels(picture.pixels, picture.width, picture.labels.length, document.kinds) : null,
      expected: expected?.pixels ? this.paintPixels(expected.pixels, picture.width, picture.labels.length, document.kinds) : null,
    };
  }

  paintPixels(text, width, rows, kinds) {
    const raw = atob(text);
    const canvas = new OffscreenCanvas(width, Math.max(1, rows));
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, Math.max(1, rows));
    const colours = kinds.map(rgb);
    for (let i = 0; i < raw.length; i++) {
      const cell = raw.charCodeAt(i);
      if (!cell) continue;
      const [r, g, b] = colours[cell >> 4] || [128, 128, 128];
      const o = i * 4;
      image.data[o] = r; image.data[o + 1] = g; image.data[o + 2] = b;
      image.data[o + 3] = 70 + Math.round((185 * (cell & 15)) / 15); // faint if spans fill little of the pixel
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  // -- painting

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = null; this.paint(); });
  }

  paint() {
    const scale = window.devicePixelRatio || 1;
    const height = this.shown ? this.top + this.visibleRows * this.rowHeight + 4 : 300;
    if (this.canvas.width !== Math.round(this.width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(this.width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const c = this.canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, this.width, height);
    c.font = "11.5px system-ui, DejaVu Sans, sans-serif";
    c.textBaseline = "middle";
    this.height = height;
    if (!this.shown || this.state.from === null) {
      c.fillStyle = colour("--soft");
      c.fillText(this.failed || "Loading the timeline", 8, 40);
      return;
    }
    this.paintRuler(c);
    c.save();
    c.beginPath();
    c.rect(this.gutter, this.top, this.plotWidth, this.visibleRows * this.rowHeight);
    c.clip();
    this.paintGrid(c, height);
    this.paintRows(c);
    this.paintFindings(c);
    c.restore();
    this.paintLabels(c);
    this.paintBands(c);
    this.paintScrollbar(c);
    if (this.hover) this.paintHover(c, height);
    if (this.drag?.range) this.paintRange(c, height);
    this.map.draw();
    this.describe();
  }

  ticks() {
    const span = this.state.to - this.state.from, wanted = Math.max(2, this.plotWidth / 110);
    const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
    const out = [];
    for (let t = Math.ceil(this.state.from / step) * step; t <= this.state.to; t += step) out.push(Math.round(t));
    this.tickStep = step;
    return out;
  }

  paintRuler(c) {
    c.fillStyle = colour("--soft");
    c.strokeStyle = colour("--line");
    c.beginPath();
    const ticks = this.ticks();
    // Deep inside a long run the first tick has its full time, and the others are relative to it.
    const deep = ticks.length > 1 && Math.abs(ticks[0]) / this.tickStep >= 1000;
    for (const [i, t] of ticks.entries()) {
      const x = Math.round(this.x(t)) + 0.5;
      c.moveTo(x, RULER - 5); c.lineTo(x, RULER);
      const text = deep && i ? `+${nanoseconds(t - ticks[0])}` : tickText(t, this.tickStep), wide = c.measureText(text).width;
      c.fillText(text, Math.max(this.gutter, Math.min(x - wide / 2, this.gutter + this.plotWidth - wide)), 9);
    }
    c.stroke();
  }

  paintGrid(c, height) {
    c.strokeStyle = colour("--line-soft");
    c.beginPath();
    for (const t of this.ticks()) { const x = Math.round(this.x(t)) + 0.5; c.moveTo(x, this.top); c.lineTo(x, height); }
    c.stroke();
  }

  paintRows(c) {
    const { window: seen, observed, expected } = this.pictures;
    const row = this.rowHeight, gap = row > 15 ? 3 : row > 8 ? 2 : row > 5 ? 1 : 0;
    const split = this.shown.expected && this.state.by === "rank";
    const upper = split ? Math.round((row - gap) * 0.6) : row - gap;
    const left = this.x(seen.from), right = this.x(seen.to);
    const rows = this.shown.picture.labels.length;
    c.imageSmoothingEnabled = false;
    for (let i = 0; i < rows; i++) {
      const y = this.top + (seen.row + i - this.state.row) * row;
      if (y < this.top - row || y > this.height) continue;
      if (observed) c.drawImage(observed, 0, i, observed.width, 1, left, y, right - left, upper);
      if (expected) { c.globalAlpha = 0.62; c.drawImage(expected, 0, i, expected.width, 1, left, y + upper, right - left, row - gap - upper); c.globalAlpha = 1; }
    }
    if (!observed) this.paintSpans(c, seen.row, upper);
    if (split && row >= 12) {
      c.strokeStyle = colour("--card");
      c.beginPath();
      for (let i = 0; i < rows; i++) { const y = this.top + (seen.row + i - this.state.row) * row + upper + 0.5; c.moveTo(this.gutter, y); c.lineTo(this.gutter + this.plotWidth, y); }
      c.stroke();
    }
  }

  paintSpans(c, firstRow, height) {
    const { spans } = this.shown.picture, end = this.gutter + this.plotWidth;
    for (let i = 0; i < spans.row.length; i++) {
      const x0 = Math.max(this.gutter - 2, this.x(spans.from_ns[i])), x1 = Math.min(end + 2, this.x(spans.to_ns[i]));
      if (x1 < this.gutter || x0 > end) continue;
      const y = this.top + (firstRow + spans.row[i] - this.state.row) * this.rowHeight, kind = this.shown.kinds[spans.kind[i]];
      const [r, g, b] = rgb(kind), faint = kind === "wait" || kind === "microbatch";
      c.fillStyle = `rgba(${r},${g},${b},${faint ? 0.5 : 1})`;
      c.fillRect(x0, y, Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0)), height);
      if (x1 - x0 > 42 && height >= 11) {
        c.fillStyle = faint || kind === "host" || kind === "ep" ? "#1b1f27" : "#ffffff";
        c.save(); c.beginPath(); c.rect(x0, y, x1 - x0 - 3, height); c.clip();
        c.fillText(spans.names[spans.name[i]], x0 + 4, y + height / 2 + 0.5);
        c.restore();
      }
    }
  }

  paintFindings(c) {
    if (this.state.by !== "rank") return;
    const first = this.shown.picture.ranks;
    c.lineWidth = 1.5;
    for (const { finding, ranks } of this.findings) {
      const x0 = this.x(finding.from_ns), x1 = this.x(finding.to_ns);
      if (x1 < this.gutter || x0 > this.gutter + this.plotWidth) continue;
      if (finding.kind === "hang") this.paintHang(c, Math.max(this.gutter, x0), Math.min(this.gutter + this.plotWidth, x1));
      if (!ranks.length) continue;
      const blamed = new Set(ranks);
      c.strokeStyle = colour("--bad");
      for (let i = 0; i < first.length; i++) {
        if (!blamed.has(first[i])) continue;
        let last = i;
        while (last + 1 < first.length && blamed.has(first[last + 1])) last++;
        const y = this.top + (this.pictures.window.row + i - this.state.row) * this.rowHeight;
        c.strokeRect(x0, y - 0.5, Math.max(2, x1 - x0), (last - i + 1) * this.rowHeight);
        i = last;
      }
    }
    c.lineWidth = 1;
  }

  // In a hang nothing is sent and there are no spans: the silence is drawn over all ranks.
  paintHang(c, x0, x1) {
    const bottom = this.top + Math.min(this.visibleRows, this.numRows) * this.rowHeight;
    c.save();
    c.beginPath(); c.rect(x0, this.top, Math.max(2, x1 - x0), bottom - this.top); c.clip();
    c.globalAlpha = 0.12; c.fillStyle = colour("--bad"); c.fillRect(x0, this.top, x1 - x0, bottom - this.top);
    c.globalAlpha = 0.55; c.strokeStyle = colour("--bad"); c.lineWidth = 1;
    c.beginPath();
    for (let x = x0 - (bottom - this.top); x < x1; x += 12) { c.moveTo(x, bottom); c.lineTo(x + bottom - this.top, this.top); }
    c.stroke();
    c.globalAlpha = 1; c.fillStyle = colour("--bad");
    if (x1 - x0 > 60) c.fillText("hang: silent", x0 + 6, this.top + 12);
    c.restore();
  }

  paintLabels(c) {
    c.fillStyle = colour("--soft");
    const every = Math.max(1, Math.ceil(13 / this.rowHeight));
    const { labels, ranks } = this.shown.picture;
    const blamed = new Set(this.findings.flatMap(({ ranks }) => ranks));
    for (let i = 0; i < labels.length; i++) {
      const row = this.pictures.window.row + i;
      const y = this.top + (row - this.state.row) * this.rowHeight;
      if (y < this.top || y + this.rowHeight > this.height + 1 || row % every) continue;
      c.fillStyle = blamed.has(ranks[i]) && this.state.by === "rank" ? colour("--bad") : ranks[i] === this.found ? colour("--accent") : colour("--soft");
      c.save(); c.beginPath(); c.rect(0, y - 8, this.gutter - 6, this.rowHeight + 16); c.clip();
      // Of a long label the end is shown, because it distinguishes the rows.
      const wide = c.measureText(labels[i]).width, room = this.gutter - 10;
      c.fillText(labels[i], wide > room ? room - wide + 2 : 2, y + (every > 1 ? 6.5 : this.rowHeight / 2));
      c.restore();
    }
  }

  paintBands(c) {
    const end = this.gutter + this.plotWidth;
    c.save(); c.beginPath(); c.rect(this.gutter, RULER, this.plotWidth, this.top - RULER); c.clip();
    const steps = this.shown.steps;
    steps.forEach((step, i) => {
      const x0 = Math.max(this.gutter - 1, this.x(step.from_ns)), x1 = Math.min(end + 1, this.x(step.to_ns));
      if (x1 < this.gutter || x0 > end) return;
      c.fillStyle = (step.index ?? i) % 2 ? colour("--line-soft") : colour("--line");
      c.fillRect(x0, RULER + 1, x1 - x0 - 1, BAND - 3);
      const text = x1 - x0 > 58 ? `step ${step.index}` : String(step.index);
      if (c.measureText(text).width < x1 - x0 - 6) { c.fillStyle = colour("--soft"); c.fillText(text, x0 + 4, RULER + BAND / 2); }
    });
    for (const { finding } of this.findings) {
      const x0 = Math.max(this.gutter - 1, this.x(finding.from_ns)), x1 = Math.min(end + 1, this.x(finding.to_ns));
      if (x1 < this.gutter || x0 > end) continue;
      c.fillStyle = colour("--bad-soft"); c.strokeStyle = colour("--bad");
      c.fillRect(x0, RULER + BAND, Math.max(3, x1 - x0 - 1), BAND - 3);
      c.strokeRect(x0 + 0.5, RULER + BAND + 0.5, Math.max(2, x1 - x0 - 2), BAND - 4);
      c.save(); c.beginPath(); c.rect(x0, RULER + BAND, x1 - x0 - 3, BAND); c.clip();
      c.fillStyle = colour("--bad");
      c.fillText(`${words(finding.kind)}: ${finding.culprit_type} ${finding.culprit}`, x0 + 5, RULER + BAND + BAND / 2 - 1);
      c.restore();
    }
    c.restore();
    c.fillStyle = colour("--faint");
    if (steps.length) c.fillText("steps", 2, RULER + BAND / 2);
    if (this.findings.length) c.fillText("findings", 2, RULER + BAND + BAND / 2 - 1);
  }

  paintScrollbar(c) {
    if (this.visibleRows >= this.numRows) return;
    const room = this.visibleRows * this.rowHeight, x = this.width - SCROLLBAR + 2;
    c.fillStyle = colour("--line-soft");
    c.fillRect(x, this.top, SCROLLBAR - 2, room);
    c.fillStyle = colour("--faint");
    const size = Math.max(18, (room * this.visibleRows) / this.numRows);
    c.fillRect(x, this.top + ((room - size) * this.state.row) / Math.max(1, this.numRows - this.visibleRows), SCROLLBAR - 2, size);
  }

  paintHover(c, height) {
    const { x, y } = this.hover;
    if (x < this.gutter || x > this.gutter + this.plotWidth) return;
    c.strokeStyle = colour("--faint");
    c.setLineDash([3, 3]);
    c.beginPath(); c.moveTo(Math.round(x) + 0.5, RULER); c.lineTo(Math.round(x) + 0.5, height); c.stroke();
    c.setLineDash([]);
    const row = this.rowAt(y);
    if (row >= 0) { c.strokeStyle = colour("--accent"); c.strokeRect(this.gutter + 0.5, this.top + (row - this.state.row) * this.rowHeight - 0.5, this.plotWidth - 1, this.rowHeight); }
  }

  paintRange(c, height) {
    const x0 = Math.max(this.gutter, Math.min(this.drag.x, this.drag.at)), x1 = Math.min(this.gutter + this.plotWidth, Math.max(this.drag.x, this.drag.at));
    c.fillStyle = colour("--accent"); c.globalAlpha = 0.18; c.fillRect(x0, 0, x1 - x0, height); c.globalAlpha = 1;
    c.strokeStyle = colour("--accent"); c.strokeRect(x0 + 0.5, 0.5, Math.max(1, x1 - x0 - 1), height - 1);
    c.fillText(nanoseconds(this.time(x1) - this.time(x0)), x0 + 4, height - 8);
  }

  describe() {
    const { from, to } = this.state, origin = BigInt(this.shown.origin_ns);
    const places = to - from < 1e6 ? 9 : to - from < 1e9 ? 6 : 3;
    const sight = this.shown.picture;
    clear(this.where,
      h("span", {}, `${clock(origin + BigInt(from), { places, date: true })}, ${nanoseconds(to - from)} in sight`),
      h("span", {}, `${plural(sight.num_spans, "span")} of ${whole(this.shown.total_spans)}`,
        sight.num_rows > sight.labels.length ? `, rows ${whole(this.state.row + 1)} to ${whole(this.state.row + sight.labels.length)} of ${whole(sight.num_rows)}, as many as fit: the wheel, the arrows and the search lead to the others` : `, ${plural(sight.num_rows, "row")}`,
        this.state.expected && this.shown.expected && !this.shown.expected.pixels ? "; zoom in to see what was expected" : ""));
  }

  drawBar() {
    const state = this.state;
    const kinds = this.shown.kinds_present.filter((kind) => kind !== "step");
    const press = (on, text, title, action) => h("button", { "aria-pressed": String(on), title, onclick: action }, text);
    clear(this.bar,
      h("button", { title: "Zoom in (W or +)", "aria-label": "Zoom in", onclick: () => this.zoom(0.5) }, "+"),
      h("button", { title: "Zoom out (S or -)", "aria-label": "Zoom out", onclick: () => this.zoom(2) }, "−"),
      h("button", { title: "Pan left (A)", "aria-label": "Pan left", onclick: () => this.pan(-0.4) }, "←"),
      h("button", { title: "Pan right (D)", "aria-label": "Pan right", onclick: () => this.pan(0.4) }, "→"),
      h("button", { title: "Whole timeline (F)", onclick: () => this.fit() }, "Fit"),
      this.options.lanes !== false && press(state.by === "lane", "Lanes", "A row for each lane of a rank (L)", () => this.toggleLanes()),
      h("span", { class: "chips", role: "group", "aria-label": "Kinds" }, kinds.map((kind) =>
        h("button", { class: "chip", "aria-pressed": String(state.hide.has(kind)), title: `Hide or show ${kind}`, onclick: () => { state.hide.has(kind) ? state.hide.delete(kind) : state.hide.add(kind); this.drawBar(); this.changed(); } },
          h("span", { class: "sw", style: { background: COLOURS[kind] } }), kind))),
      h("span", { class: "grow" }), this.places.size > 8 ? this.finder() : null,
      this.options.tools?.() || null);
  }

  // A rank, a host or an address: the row moves into sight.
  finder() {
    const find = (event) => {
      event.preventDefault();
      const text = new FormData(event.target).get("place").trim().toLowerCase();
      const found = [...this.places.values()].find((p) => [String(p.rank), p.host.toLowerCase(), p.endpoint.toLowerCase()].includes(text)) || [...this.places.values()].find((p) => text && `${p.host} ${p.endpoint}`.toLowerCase().includes(text));
      event.target.elements.place.setAttribute("aria-invalid", String(!found));
      if (found) this.showRank(found.rank);
    };
    return h("form", { class: "chips", role: "search", onsubmit: find }, h("input", { type: "search", name: "place", "aria-label": "Find a rank, host or address", placeholder: "Rank, host", style: { width: "110px" } }));
  }

  showRank(rank) {
    if (this.state.by === "lane") this.state.by = "rank";
    this.found = rank;
    this.state.row = Math.max(0, Math.min(this.numRows - this.visibleRows, rank - Math.floor(this.visibleRows / 2)));
    this.changed(true);
  }

  toggleLanes() {
    this.state.by = this.state.by === "lane" ? "rank" : "lane";
    this.state.row = 0;
    this.drawBar();
    this.changed(true);
  }

  // -- pointer, touch and keys

  listen() {
    const place = (event) => { const box = this.canvas.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top }; };
    this.canvas.addEventListener("wheel", (event) => this.onWheel(event, place(event)), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { ...place(event), event });
      const at = place(event);
      this.drag = { ...at, from: this.state.from, to: this.state.to, row: this.state.row, moved: false, bar: at.x > this.width - SCROLLBAR, range: at.x >= this.gutter && at.x <= this.gutter + this.plotWidth && (event.shiftKey || at.y < RULER), at: at.x };
    });
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event, place(event)));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, (event) => {
      this.pointers.delete(event.pointerId);
      const drag = this.drag;
      if (!this.pointers.size) this.drag = null;
      if (name === "pointerup" && drag?.range && drag.moved) { const [a, b] = [drag.x, drag.at].sort((p, q) => p - q).map((x) => this.time(x)); this.setWindow(a, b, { push: true }); }
      if (name === "pointerup" && drag && !drag.moved) {
        this.onClick(place(event));
        // A finger does not hover: a tap shows what is under it until the next tap.
        if (event.pointerType === "touch") { this.hover = place(event); this.draw(); this.showTip(this.hover, event); }
      }
    });
    this.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "touch") return; this.hover = null; this.hideTip(); this.draw(); });
    this.canvas.addEventListener("dblclick", (event) => { const at = place(event); if (at.y >= this.top) this.zoom(0.25, this.time(at.x)); });
    this.canvas.addEventListener("keydown", (event) => { if (this.onKey(event)) event.preventDefault(); });
  }

  onWheel(event, at) {
    if (!this.shown) return;
    if (event.ctrlKey || event.metaKey || event.altKey) { event.preventDefault(); this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.004))), this.time(at.x)); return; }
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) { event.preventDefault(); this.pan(sideways / this.plotWidth); return; }
    if (this.visibleRows < this.numRows && this.scrollTo(this.state.row + Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / this.rowHeight / 2)))) event.preventDefault();
  }

  onMove(event, at) {
    if (!this.shown) return;
    const pointer = this.pointers.get(event.pointerId);
    if (this.pointers.size === 2 && pointer) {
      const [a, b] = [...this.pointers.values()], before = Math.abs(a.x - b.x), middle = this.time((a.x + b.x) / 2);
      Object.assign(pointer, at);
      const [c, d] = [...this.pointers.values()];
      this.zoom(Math.max(0.2, Math.min(5, before / Math.max(20, Math.abs(c.x - d.x)))), middle);
      if (this.drag) this.drag.moved = true;
      return;
    }
    if (this.drag && pointer) {
      const dx = at.x - this.drag.x, dy = at.y - this.drag.y;
      if (Math.abs(dx) + Math.abs(dy) > 3) this.drag.moved = true;
      if (!this.drag.moved) return;
      this.hideTip();
      if (this.drag.range) { this.drag.at = at.x; this.draw(); return; }
      if (this.drag.bar) { this.scrollTo(this.drag.row + (dy / (this.visibleRows * this.rowHeight)) * this.numRows); return; }
      const shift = (dx / this.plotWidth) * (this.drag.to - this.drag.from);
      if (event.pointerType === "mouse") this.state.row = Math.max(0, Math.min(this.numRows - this.visibleRows, this.drag.row - Math.round(dy / this.rowHeight)));
      this.setWindow(this.drag.from - shift, this.drag.to - shift);
      return;
    }
    this.hover = at;
    this.draw();
    this.showTip(at, event);
  }

  onClick(at) {
    this.canvas.focus({ preventScroll: true });
    if (at.y >= RULER && at.y < RULER + BAND) {
      const t = this.time(at.x), step = this.shown.steps.find((s) => s.from_ns <= t && t < s.to_ns);
      if (step) this.setWindow(step.from_ns, step.to_ns, { push: true });
    } else if (at.y >= RULER + BAND && at.y < this.top) {
      const found = this.findingAt(at);
      if (found) this.show(found.finding.from_ns, found.finding.to_ns, found.ranks);
    }
  }

  onKey(event) {
    if (!this.shown || event.ctrlKey || event.metaKey || event.altKey) return false;
    const act = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), a: () => this.pan(-0.2), d: () => this.pan(0.2),
      ArrowUp: () => this.scrollTo(this.state.row - 3), ArrowDown: () => this.scrollTo(this.state.row + 3), PageUp: () => this.scrollTo(this.state.row - this.visibleRows), PageDown: () => this.scrollTo(this.state.row + this.visibleRows),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      f: () => this.fit(), Home: () => this.fit(), n: () => this.goStep(1), p: () => this.goStep(-1), j: () => this.goFinding(1), k: () => this.goFinding(-1),
      l: () => { if (this.options.lanes !== false) this.toggleLanes(); },
    }[event.key];
    if (!act) return false;
    act();
    return true;
  }

  // -- spans under the pointer

  findingAt(at) {
    const t = this.time(at.x), slack = (3 / this.plotWidth) * (this.state.to - this.state.from);
    return this.findings.find(({ finding }) => finding.from_ns - slack <= t && t <= finding.to_ns + slack);
  }

  hideTip() { clearTimeout(this.hovering); this.tip.style.display = "none"; }

  showTip(at, event) {
    clearTimeout(this.hovering);
    const put = (...children) => {
      if (!children.flat(9).filter(Boolean).length) { this.tip.style.display = "none"; return; }
      clear(this.tip, ...children);
      this.tip.style.display = "block";
      const wide = this.tip.offsetWidth, high = this.tip.offsetHeight;
      this.tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, window.innerWidth - wide - 8))}px`;
      this.tip.style.top = `${event.clientY + 18 + high > window.innerHeight ? Math.max(6, event.clientY - high - 12) : event.clientY + 18}px`;
    };
    if (at.x < this.gutter || at.x > this.gutter + this.plotWidth) { this.hideTip(); return; }
    if (at.y < this.top) {
      const t = this.time(at.x);
      const step = at.y < RULER + BAND ? this.shown.steps.find((s) => s.from_ns <= t && t < s.to_ns) : null;
      const found = at.y >= RULER + BAND ? this.findingAt(at) : null;
      if (step) put(h("b", {}, `step ${step.index}`), facts([["lasts", nanoseconds(step.to_ns - step.from_ns)], ["from", nanoseconds(step.from_ns)]]));
      else if (found) put(h("b", {}, `${words(found.finding.kind)}: ${found.finding.culprit_type} ${found.finding.culprit}`), facts([["lasts", nanoseconds(found.finding.to_ns - found.finding.from_ns)], ["cost", `${whole(found.finding.lost_gpu_seconds)} GPU s`], ["evidence", found.finding.evidence]]));
      else this.hideTip();
      return;
    }
    this.hovering = setTimeout(() => this.fetchTip(at, put), 70);
  }

  async fetchTip(at, put) {
    const row = this.rowAt(at.y) - this.pictures.window.row, picture = this.shown.picture;
    if (row < 0 || row >= picture.labels.length) { this.hideTip(); return; }
    const pixel = (this.state.to - this.state.from) / this.plotWidth, t = this.time(at.x);
    const lane = this.state.by === "lane" ? picture.labels[row].split("  ").slice(1).join("  ") : "";
    let found;
    try {
      found = await load("spans", { key: this.key, rank: picture.ranks[row], lane, from_ns: Math.floor(t - pixel), to_ns: Math.ceil(t + pixel), expected: this.state.by === "rank" ? this.state.expected : "" });
    } catch { return; }
    const shown = found.observed.filter((span) => !this.state.hide.has(span.kind));
    const more = found.num_observed - Math.min(4, shown.length);
    const place = this.places.get(picture.ranks[row]);
    put(h("b", {}, picture.labels[row]), place && h("div", { class: "note" }, [`host ${place.host}`, place.endpoint === place.host ? "" : place.endpoint, place.stage === null ? "" : `stage ${place.stage}`].filter(Boolean).join(", ")), shown.slice(0, 4).map(describeSpan), more > 0 && found.num_observed > 4 ? h("div", { class: "note" }, `and ${whole(more)} more here; zoom in`) : null,
      found.expected.length ? [h("hr"), h("b", {}, "expected"), found.expected.slice(0, 2).map(describeSpan)] : null,
      !shown.length && !found.expected.length ? h("div", { class: "note" }, "nothing here") : null);
  }
}

function tickText(ns, step) {
  const [unit, size] = Math.abs(ns) >= 1e9 ? ["s", 1e9] : Math.abs(ns) >= 1e6 ? ["ms", 1e6] : Math.abs(ns) >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  if (Math.abs(ns) >= 120e9 && step >= 1e9) return nanoseconds(ns);
  const places = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / size) + 1e-9)));
  return ns === 0 ? "0 s" : `${(ns / size).toFixed(places)} ${unit}`;
}

function facts(pairs) { return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])); }

function describeSpan(span) {
  return h("div", { style: { marginTop: "4px" } }, h("span", { class: "sw", style: { background: COLOURS[span.kind] || COLOURS.unknown, marginRight: "6px" } }), span.name,
    facts([["lasts", nanoseconds(span.to_ns - span.from_ns)], ["from", nanoseconds(span.from_ns)], ["step", span.step], ["bytes", span.bytes === null ? null : bytes(span.bytes)], ["group", span.group], ["lane", span.lane]]));
}
