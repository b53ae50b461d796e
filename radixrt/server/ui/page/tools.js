// Elements, numbers and requests. Text of users enters the page through textContent and text nodes alone.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const count = (n) => Math.round(n).toLocaleString("en-US");
export const TIERS = { host: "in host memory", disk: "on disk", peer: "on another replica" };
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : /[hx]$/.test(noun) ? "es" : "s"}`;
export const oneLine = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text).replace(/\s*\n\s*/g, " ⏎ ");

export function short(n) { // in few characters
  if (Math.abs(n) < 1000) return n < 10 && n % 1 ? n.toFixed(1) : String(Math.round(n));
  const [unit, name] = Math.abs(n) < 1e6 ? [1e3, "k"] : Math.abs(n) < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return `${(n / unit).toFixed(Math.abs(n) / unit < 10 ? 1 : 0)}${name}`;
}

export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 99.5 && seconds % 60) return `${seconds % 1 ? seconds.toFixed(seconds < 9.95 ? 2 : 1) : seconds} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (whole < 3600) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  return whole % 3600 ? `${(whole / 3600).toFixed(1)} h` : `${whole / 3600} h`;
}

export function axisTime(seconds) { // in few characters
  return seconds < 1000 ? time(seconds).replace(/^\d+ min.*$/, `${Math.round(seconds)} s`) : time(seconds);
}

export const clockTime = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");

// --- colours ---

let colors = {};

export function readColors() { // those of the style sheet, for canvases
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "card", "ink", "quiet", "line", "hover", "cached", "computed", "sampled", "forced", "queued", "error", "picked", "cold"];
  colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export const color = (name) => colors[name];

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const mixes = new Map();

export function mix(from, to, share) { // of two names; in 24 steps, so that few colours are made
  const step = Math.round(24 * Math.min(Math.max(share, 0), 1)), key = `${colors[from]}${colors[to]}${step}`;
  let made = mixes.get(key);
  if (made === undefined) {
    const a = channels(colors[from]), b = channels(colors[to]);
    made = `rgb(${a.map((value, i) => Math.round(value + ((b[i] - value) * step) / 24)).join(" ")})`;
    mixes.set(key, made);
  }
  return made;
}

// --- parts that several tabs use ---

export function stack(parts, scale) { // parts: [tokens, colour name]
  const total = scale || parts.reduce((sum, [n]) => sum + n, 0) || 1;
  const bar = make("div", { class: "stack" });
  fillStack(bar, parts, total);
  return bar;
}

export function fillStack(bar, parts, total) {
  bar.replaceChildren(...parts.filter(([n]) => n > 0).map(([n, name]) => {
    const part = make("i");
    part.style.width = `${(100 * n) / (total || 1)}%`;
    part.style.background = `var(--${name})`;
    return part;
  }));
}

export function legend(node, entries) { // entries: [words, colour of CSS, or a name of the style sheet]
  node.replaceChildren(...entries.map(([words, paint]) => {
    const key = make("span", { class: "key" }, words);
    key.style.setProperty("--c", paint in colors ? `var(--${paint})` : paint);
    return key;
  }));
}

export function showTip(event, ...children) {
  const tip = $("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? Math.max(8, event.clientY - box.height - 12) : event.clientY + 18}px`;
}

export const hideTip = () => ($("tip").hidden = true);

// A canvas as large as its element, in device pixels; returns its context, scaled to CSS pixels.
export function prepare(canvas, height) {
  const width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [context, width];
}

export const FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

// --- requests to the server ---

const KEY = "radixrt-key";
export const hasKey = () => Boolean(sessionStorage.getItem(KEY));
export const storeKey = (key) => sessionStorage.setItem(KEY, key);

export async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY), headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers["content-type"] = "application/json";
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not the server's own answer */ }
  throw Object.assign(new Error(message), { status: response.status });
}

// The lines of an answer, as they come.
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = value.split("\n");
    parts.push(pieces[0]);
    for (let i = 1; i < pieces.length; i++) { // a long line comes in many pieces, which are joined once
      yield parts.join("");
      parts = [pieces[i]];
    }
  }
}
