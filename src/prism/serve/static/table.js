// Tables that sort, filter and leave as CSV.
import { clear, download, h } from "./dom.js";
import { whole } from "./units.js";

const kept = new Map(); // how a table is sorted outlives its page being drawn anew

// columns: { name, get(row) -> value to sort and export, show(row) -> what to draw, num, wide, title }
export function table(id, columns, rows, { go, chosen, most = 100, sort, caption, search = rows.length > 8 } = {}) {
  const state = kept.get(id) || { column: sort?.[0] ?? null, down: sort?.[1] ?? false, text: "", most };
  kept.set(id, state);
  const head = h("tr", {}), body = h("tbody", {}), foot = h("div", { class: "more" });
  const value = (column, row) => (column.get ? column.get(row) : null);

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
    clear(head, columns.map((column) => {
      const here = state.column === column.name;
      return h("th", { scope: "col", class: column.num ? "num" : null, title: column.title, "aria-sort": here ? (state.down ? "descending" : "ascending") : "none" },
        column.get ? h("button", { onclick: () => { state.down = here ? !state.down : Boolean(column.num); state.column = column.name; draw(); } },
          column.name, h("span", { class: "way", "aria-hidden": "true" }, here ? (state.down ? "▼" : "▲") : "")) : column.name);
    }));
    const found = ordered();
    clear(body, found.slice(0, state.most).map((row) => {
      const cells = columns.map((column) => {
        const shown = column.show ? column.show(row) : value(column, row);
        const cell = h("td", { class: [column.num && "num", column.wide && "wide", column.cut && "name"].filter(Boolean).join(" ") || null }, shown ?? "–");
        if (column.cut) cell.title = String(value(column, row) ?? "");
        return cell;
      });
      const where = go?.(row);
      const attributes = { class: [where && "go", chosen?.(row) && "chosen"].filter(Boolean).join(" ") || null };
      if (typeof where === "function") Object.assign(attributes, { tabindex: 0, onclick: where, onkeydown: (e) => { if (e.key === "Enter") where(e); } });
      return h("tr", attributes, cells);
    }));
    const left = found.length - state.most;
    clear(foot, found.length === 0 && rows.length ? "No row matches." : null,
      left > 0 && h("button", { onclick: () => { state.most += 500; draw(); } }, `Show ${whole(Math.min(500, left))} more`),
      left > 0 && h("span", {}, `${whole(left)} rows are not shown; the CSV holds all`));
  }

  draw();
  const tools = h("span", { class: "chips" },
    search && h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${caption || id}`, value: state.text, oninput: (e) => { state.text = e.target.value; draw(); } }),
    h("button", { class: "plain", title: "Export this table as CSV", onclick: () => download(`${id}.csv`, new Blob([csv(columns, ordered())], { type: "text/csv" })) }, "CSV"));
  return { draw, node: h("div", {}, h("div", { class: "scroll" }, h("table", { "aria-label": caption || id }, h("thead", {}, head), body)), foot), tools };
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
  if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet must not take it for a formula
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
