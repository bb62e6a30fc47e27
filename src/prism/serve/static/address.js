// The address holds the state of the page, so that a link shows the same to somebody else.

// Pages may lie below a prefix that only a proxy knows: it is read off this file's own address.
export const ROOT = new URL("..", import.meta.url).pathname;
export const page = () => `/${location.pathname.startsWith(ROOT) ? location.pathname.slice(ROOT.length) : ""}`;
export const at = (path) => ROOT + path.replace(/^\//, "");

export const get = (name, otherwise = "") => new URLSearchParams(location.search).get(name) ?? otherwise;

export function set(values, { push = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  const next = location.pathname + (text ? `?${text}` : "");
  if (next === location.pathname + location.search) return;
  history[push ? "pushState" : "replaceState"](null, "", next);
}

export const link = (path, values = {}) => {
  const query = new URLSearchParams(Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== "")).toString();
  return at(path) + (query ? `?${query}` : "");
};
