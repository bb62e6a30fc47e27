// Tables that can be sorted, filtered and exported as CSV.
import { clear, download, h } from "./dom.js";
import { whole } from "./units.js";

const kept = new Map(); // how a table is sorted, kept when its page is redrawn

// columns: { name, get(row) -> value to sort and export, show(row) -> what to draw, num, wide, tight, title, fold }
// If a table is too wide, columns with `fold` are hidden, 1 first; a button shows them again, and the table scrolls.
export function table(id, columns, rows, { go, chosen, most = 100, sort, caption, search = rows.length > 8 } = {}) {
  const state = kept.get(id) || { column: sort?.[0] ?? null, down: sort?.[1] ?? false, text: "", most, folded: 0, all: false };
  kept.set(id, state);
  const head = h("tr", { role: "row" }), body = h("tbody", { role: "rowgroup" }), foot = h("div", { class: "more" });
  // Roles are explicit: if rows are drawn as lists, browsers would not treat them as a table any more.
  const scroll = h("div", { class: "scroll", role: "region", "aria-label": `Table: ${caption || id}` },
    h("table", { role: "table", "aria-label": caption || id }, h("thead", { role: "rowgroup" }, head), body));
  const value = (column, row) => (column.get ? column.get(row) : null);
  const foldable = columns.filter((c) => c.fold).sort((a, b) => a.fold - b.fold);
  const inSight = () => (state.all ? columns : columns.filter((c) => !foldable.slice(0, state.folded).includes(c)));

  function ordered() {
    const text = state.text.toLowerCase();
    const found = text ? rows.filter((row) => columns.some((c) => String(value(c, row) ?? "").toLowerCase().includes(text))) : rows;
    const column = columns.find((c) => c.name === state.column);
    if (!column) return found;
    const sign = state.down ? -1 : 1;
    return [...found].sort((a, b) => {
      const x = value(column, a), y = value(column, b);
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    });
  }

  function draw() {
    const shownColumns = inSight();
    clear(head, shownColumns.map((column) => {
      const here = state.column === column.name;
      return h("th", { role: "columnheader", scope: "col", class: column.num ? "num" : null, title: column.title, "aria-sort": here ? (state.down ? "descending" : "ascending") : "none" },
        column.get ? h("button", { onclick: () => { state.down = here ? !state.down : Boolean(column.num); state.column = column.name; draw(); } },
          column.name, h("span", { class: "way", "aria-hidden": "true" }, here ? (state.down ? "▼" : "▲") : "")) : column.name);
    }));
    const found = ordered();
    clear(body, found.slice(0, state.most).map((row) => {
      const cells = shownColumns.map((column) => {
        const shown = column.show ? column.show(row) : value(column, row);
        const cell = h("td", { role: "cell", class: [column.num && "num", column.wide && "wide", column.cut && "name", column.tight && "tight"].filter(Boolean).join(" ") || null, "data-name": column.name }, shown ?? "–");
        if (column.cut) cell.title = String(value(column, row) ?? "");
        return cell;
      });
      const where = go?.(row);
      const attributes = { role: "row", class: [where && "go", chosen?.(row) && "chosen"].filter(Boolean).join(" ") || null };
      if (typeof where === "function") Object.assign(attributes, { tabindex: 0, onclick: where, onkeydown: (e) => { if (e.key === "Enter") where(e); } });
      return h("tr", attributes, cells);
    }));
    const left = found.length - state.most;
    const away = columns.filter((c) => !shownColumns.includes(c));
    clear(foot, found.length === 0 && rows.length ? "No row matches." : null,
      left > 0 && h("button", { onclick: () => { state.most += 500; draw(); } }, `Show ${whole(Math.min(500, left))} more`),
      left > 0 && h("span", {}, `${whole(left)} rows are not shown; the CSV holds all`),
      away.length > 0 && h("button", { class: "plain", title: `Not shown for want of room: ${away.map((c) => c.name).join(", ")}`, onclick: () => { state.all = true; draw(); fit(); } }, `Show ${away.length} more column${away.length > 1 ? "s" : ""}`),
      state.all && state.folded > 0 && h("button", { class: "plain", onclick: () => { state.all = false; draw(); fit(); } }, "Fewer columns"));
  }

  function fit() {
    const width = scroll.clientWidth, isOver = () => scroll.scrollWidth > width + 1;
    if (!width) return; // not on the page, or not visible
    scroll.classList.remove("over", "stack");
    scroll.removeAttribute("tabindex");
    if (width > (state.width ?? 0) && state.folded) { state.folded = 0; draw(); }
    state.width = width;
    while (!state.all && isOver() && state.folded < foldable.length) { state.folded += 1; draw(); }
    if (!isOver()) return;
    if (width < 560) return scroll.classList.add("stack"); // a row is a list of names and values
    scroll.classList.add("over");
    scroll.tabIndex = 0; // so that keys scroll it, too
  }

  draw();
  const tools = h("span", { class: "chips" },
    search && h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${caption || id}`, value: state.text, oninput: (e) => { state.text = e.target.value; draw(); } }),
    h("button", { class: "plain", title: "Export this table as CSV", onclick: () => download(`${id}.csv`, new Blob([csv(columns, ordered())], { type: "text/csv" })) }, "CSV"));
  const gauge = h("div", {}); // as wide as the table's container, with a height that does not depend on the visible columns
  new ResizeObserver(fit).observe(gauge);
  return { draw, node: h("div", {}, gauge, scroll, foot), tools };
}

export function csv(columns, rows) {
  const used = columns.filter((column) => column.get);
  const line = (values) => values.map(cell).join(",");
  return [line(used.map((c) => c.name)), ...rows.map((row) => line(used.map((c) => c.get(row))))].join("\r\n") + "\r\n";
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  let text = String(value);
  if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`; // so that a spreadsheet does not read it as a formula
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
