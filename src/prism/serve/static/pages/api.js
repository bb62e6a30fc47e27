// The API, from its own description.
import { at } from "../address.js";
import { card, h } from "../dom.js";

export async function api() {
  const answer = await fetch(at("/api/openapi.json"));
  const description = await answer.json();
  const operations = Object.entries(description.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => [`${method.toUpperCase()} ${path}`, operation]));
  const routes = operations.map(([route, operation]) => card(route, h("div", {}, h("p", { style: { marginTop: 0 } }, operation.description || operation.summary || ""), operation.parameters?.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["parameter", "needed", "what"].map((name) => h("th", {}, name)))), h("tbody", {}, operation.parameters.map((p) => h("tr", {}, h("td", {}, h("code", {}, p.name)), h("td", {}, p.required ? "yes" : "no"), h("td", {}, p.description || p.schema?.description || "")))))) : null), { about: (operation.tags || []).join(", ") }));
  return { node: h("div", {}, h("div", { class: "head" }, h("h1", {}, "API"), h("span", { class: "sub" }, "JSON over GET; only remarks, silences and a test of an alert are written; errors have one shape: error.code, error.message, error.status"), h("span", { class: "grow" }), h("a", { class: "button", href: at("/api/openapi.json"), "data-outside": "yes" }, "OpenAPI")), routes) };
}
