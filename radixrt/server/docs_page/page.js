"use strict";

let description;

/** Make an element; children that are strings become text nodes, so that no text is ever markup. */
function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function resolved(schema) {
  if (!schema.$ref) return schema;
  return description.components.schemas[schema.$ref.split("/").pop()];
}

const nameOf = (schema) => schema.$ref.split("/").pop();

/** The name of a schema's type, in a few words. */
function typeOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  const either = schema.anyOf || schema.oneOf;
  if (either) return either.filter((one) => one.type !== "null").map(typeOf).join(" | ");
  if (schema.type === "array") {
    if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
    return `array of ${typeOf(schema.items || {})}`;
  }
  if (schema.type === "object" && schema.additionalProperties) return `map of ${typeOf(schema.additionalProperties)}`;
  return schema.type || "any JSON";
}

/** The schemas with members that a schema refers to, those of arrays and alternatives included. */
function inner(schema) {
  if (schema.$ref) return [schema];
  return [...(schema.anyOf || schema.oneOf || []), ...(schema.prefixItems || []), schema.items, schema.additionalProperties]
    .filter((one) => one && typeof one === "object").flatMap(inner);
}

/** A part of the page that is made when it is first opened. */
function folded(title, fill) {
  const body = make("div", {});
  const whole = make("details", { class: "more" }, make("summary", {}, title), body);
  whole.addEventListener("toggle", () => { if (whole.open && !body.hasChildNodes()) body.append(...fill()); });
  return whole;
}

function table(schema) {
  const needed = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).sort(([a], [b]) => needed.has(b) - needed.has(a));
  return make("table", {}, ...rows.map(([name, field]) => {
    const about = make("td", {});
    if (field.description) about.append(make("p", {}, field.description));
    if (field.default !== undefined) about.append(make("p", { class: "note" }, `default: ${JSON.stringify(field.default)}`));
    for (const one of inner(field)) {
      if (resolved(one).properties) about.append(folded(nameOf(one), () => members(one)));
    }
    const label = make("td", {}, name);
    if (needed.has(name)) label.append(make("span", { class: "needed", title: "required" }, " *"));
    return make("tr", {}, label, make("td", {}, typeOf(field)), about);
  }));
}

/** A schema's text and its members; of alternatives, each by its name. */
function members(schema) {
  const found = resolved(schema);
  const either = found.anyOf || found.oneOf;
  if (either && !schema.$ref) return either.map((one) => folded(typeOf(one), () => members(one)));
  const made = found.description ? [make("p", { class: "note" }, found.description)] : [];
  if (found.properties) return [...made, table(found)];
  if (found.items) return [...made, make("p", {}, typeOf(found)), ...inner(found).map((one) => folded(nameOf(one), () => members(one)))];
  return [...made, make("p", {}, typeOf(found))];
}

function curl(method, path, body) {
  const parts = [`curl -X ${method} '${new URL(path, location.href).href}'`];
  if (document.getElementById("key").value) parts.push("-H 'Authorization: Bearer KEY'");
  if (body) parts.push("-H 'Content-Type: application/json'", `-d '${body.replaceAll("'", "'\\''")}'`);
  return parts.join(" \\\n  ");
}

/** Send a request and show its answer as it comes. */
async function send(method, path, body, shown) {
  const headers = body === null ? {} : { "Content-Type": "application/json" };
  const key = document.getElementById("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  shown.hidden = false;
  shown.textContent = "…";
  try {
    const answer = await fetch(path.slice(1), { method, headers, body });
    let text = `${answer.status} ${answer.statusText}\n\n`;
    if ((answer.headers.get("content-type") || "").startsWith("text/event-stream")) {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) shown.textContent = text += part.value;
      return;
    }
    const content = await answer.text();
    try { text += JSON.stringify(JSON.parse(content), null, 2); } catch { text += content; }
    shown.textContent = text;
  } catch (error) {
    shown.textContent = String(error);
  }
}

function trial(method, path, operation) {
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  const area = content && make("textarea", { spellcheck: "false", "aria-label": "body" });
  if (area) area.value = JSON.stringify(content.example || {}, null, 2);
  const inputs = operation.parameters.map((one) =>
    make("input", { "data-name": one.name, "data-in": one.in, placeholder: one.name, "aria-label": one.name }));
  const filled = () => {
    const query = new URLSearchParams();
    let whole = path;
    for (const input of inputs) {
      const { name, in: where } = input.dataset;
      if (where === "path") whole = whole.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(name, input.value);
    }
    return query.size ? `${whole}?${query}` : whole;
  };
  const shown = make("pre", { hidden: "" });
  const body = () => area ? area.value : method === "POST" ? "" : null;
  const sender = make("button", { type: "button" }, "Send");
  sender.addEventListener("click", () => send(method, filled(), body(), shown));
  const teller = make("button", { type: "button" }, "curl");
  teller.addEventListener("click", () => { shown.hidden = false; shown.textContent = curl(method, filled(), body()); });
  return [...inputs, ...(area ? [area] : []), make("div", { class: "buttons" }, sender, teller), shown];
}

function answers(operation) {
  return Object.entries(operation.responses).flatMap(([status, response]) =>
    Object.entries(response.content || {}).map(([type, content]) => {
      const schema = content["x-item-schema"] || content.schema;
      const what = content["x-item-schema"] ? content.schema.description : response.description;
      return folded(`${status} ${type}`, () => [make("p", { class: "note" }, what), ...members(schema)]);
    }));
}

function route(method, path, operation) {
  const body = make("div", {});
  const whole = make("details", { class: "route", id: operation.operationId },
    make("summary", {}, make("span", { class: `method ${method.toLowerCase()}` }, method),
      make("span", { class: "path" }, path), make("span", { class: "purpose" }, operation.summary)), body);
  whole.dataset.text = `${method} ${path} ${operation.summary}`.toLowerCase();
  whole.addEventListener("toggle", () => {
    if (!whole.open || body.hasChildNodes()) return;
    if (operation.description) body.append(make("p", { class: "note" }, operation.description));
    for (const one of operation.parameters) {
      const about = one.schema.description ? `: ${one.schema.description}` : "";
      body.append(make("p", {}, `${one.name} (${one.in})${about}`));
    }
    if (operation.requestBody) {
      const { schema } = operation.requestBody.content["application/json"];
      body.append(make("h3", {}, "Request"), folded(typeOf(schema), () => members(schema)));
    }
    body.append(make("h3", {}, "Answers"), ...answers(operation), make("h3", {}, "Try it"), ...trial(method, path, operation));
  });
  return whole;
}

function show() {
  document.getElementById("version").textContent = description.info.version;
  document.getElementById("about").textContent = description.info.description.replaceAll("`", "");
  const groups = new Map(description.tags.map((tag) => [tag.name, []]));
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      groups.get(operation.tags[0]).push(route(method.toUpperCase(), path, operation));
    }
  }
  const sections = [...groups].map(([name, list]) => make("section", {}, make("h2", {}, name), ...list));
  document.getElementById("routes").replaceChildren(...sections);
  const opened = document.getElementById(location.hash.slice(1));
  if (opened && opened.tagName === "DETAILS") { opened.open = true; opened.scrollIntoView(); }
}

function filter(wanted) {
  for (const section of document.querySelectorAll("main section")) {
    const list = [...section.querySelectorAll("details.route")];
    for (const one of list) one.hidden = !one.dataset.text.includes(wanted.toLowerCase());
    section.hidden = list.every((one) => one.hidden);
  }
}

document.getElementById("filter").addEventListener("input", (event) => filter(event.target.value));
fetch("openapi.json").then((answer) => answer.json()).then((found) => { description = found; show(); }).catch((error) => {
  document.getElementById("routes").textContent = `The description could not be loaded: ${error}`;
});
