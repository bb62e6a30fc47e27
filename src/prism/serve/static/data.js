// The API. An answer that did not change is not sent again.
import { at } from "./address.js";

const kept = new Map(), asking = new Map();

// Parts of a page that request the same document at the same time share one answer.
export function load(path, values = {}, options = {}) {
  if (options.signal) return ask(path, values, options);
  const key = JSON.stringify([path, values]);
  if (!asking.has(key)) asking.set(key, ask(path, values, options).finally(() => asking.delete(key)));
  return asking.get(key);
}

// What a person does: the service answers 405 where nothing may be written.
export async function write(path, method, body) {
  const answer = await fetch(at(path), { method, headers: { "Content-Type": "application/json", "X-Prism-Write": "1" }, body: body && JSON.stringify(body) });
  if (answer.ok) return answer.json();
  throw new Error(answer.status === 405 ? "Nothing can be written: the service was started without --state." : (await answer.json()).error.message);
}

async function ask(path, values = {}, { signal } = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== "")).toString();
  const url = at(`/api/${path}${query ? `?${query}` : ""}`);
  const before = kept.get(url);
  const answer = await fetch(url, { signal, headers: before ? { "If-None-Match": before.tag } : {} });
  if (answer.status === 304 && before) return before.document;
  if (answer.status === 401) { location.reload(); throw new Error("log in again"); }
  const document = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(document.error?.message || `HTTP ${answer.status}`), { status: answer.status });
  if (path !== "spans" && answer.headers.get("ETag")) {
    kept.delete(url);
    kept.set(url, { tag: answer.headers.get("ETag"), document });
    if (kept.size > 60) kept.delete(kept.keys().next().value);
  }
  return document;
}
