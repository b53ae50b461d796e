// The page: reads the feed of the server, and draws what is visible.
import { Fleet } from "./fleet.js";
import { Icicle, MODES, SCALES } from "./icicle.js";
import { Playground } from "./playground.js";
import { Plots } from "./plots.js";
import { Report } from "./report.js";
import { Requests } from "./requests.js";
import { $, call, count, fillStack, hasKey, legend, lines, make, percent, plural, readColors, short, storeKey, TIERS, time } from "./tools.js";
import { kindOf, Tree } from "./tree.js";

const SLOW_MS = 1000; // lists of evictions and tables of programs
const tree = new Tree(), requests = new Requests(tree), icicle = new Icicle(tree, requests), plots = new Plots(requests), playground = new Playground();
let clock = 0; // the server's time less this page's
let shown = null, feed = null; // the replica whose tree is shown, and what ends its feed
const fleet = new Fleet((replica) => {
  if (replica === fleet.shown) return;
  shown = replica;
  feed?.abort();
});
let hello = null, tab = "live", drawnSlow = 0, live = false;
let tiers = []; // of each tier: name, tokens, places, prompt tokens fetched from it

new Report(); // it draws itself when a file is opened

const now = () => Date.now() / 1000 + clock;

// --- the feed ---

const takers = {
  hello(line) {
    hello = line;
    clock = line.at - Date.now() / 1000;
    icicle.showsText = line.shows_text;
    icicle.replica = fleet.shown = line.replica;
    $("model").textContent = line.model;
    document.title = `${line.model} · radixrt`;
    playground.start(line);
  },
  snapshot(line) {
    tree.load(line);
    requests.forget();
    icicle.zoom(null);
  },
  events: (line) => tree.apply(line),
  requests: (line) => requests.takeRequests(line, fleet.size ? fleet.shown : null),
  router: (line) => requests.takeHeld(line),
  misses: (line) => requests.takeMisses(line),
  fleet: (line) => fleet.take(line.rows, now(), requests.held.waiting),
  samples: (line) => plots.add(line.rows),
  tiers(line) {
    tiers = line.rows;
    icicle.showsTiers = true;
  },
  bounds: (line) => plots.addBounds(line, now()),
};

function state(words, isLive) {
  live = isLive;
  const parts = hello ? [`${hello.device} ${hello.dtype}`, `${count(hello.slots)} KV slots`, `radixrt ${hello.version}`] : [];
  $("about").replaceChildren(make("span", { class: isLive ? "dot on" : "dot" }), [words, ...parts].join(" · "));
}

async function follow() {
  for (;;) {
    try {
      feed = new AbortController();
      const response = await call(shown === null ? "/ui/events" : `/ui/events?replica=${shown}`, { signal: feed.signal });
      $("login").hidden = $("failure").hidden = true;
      $("main").hidden = false;
      plots.rows = [];
      requests.takeHeld({ waiting: 0, rows: [] });
      for await (const line of lines(response)) {
        if (!line) continue;
        const message = JSON.parse(line);
        takers[message.t]?.(message);
        if (!live) state("live", true);
        due();
      }
      state("the server is shutting down", false);
    } catch (error) {
      if (feed.signal.aborted) continue; // another replica
      if (error.status === 400) shown = null; // the replica is gone
      if (error.status === 401 || error.status === 403) {
        $("login").hidden = false;
        $("main").hidden = true; // nothing in it would work
        $("failure").hidden = !hasKey(); // a key was given, and is refused
        $("failure").textContent = error.message;
        state("an API key is needed", false);
        await new Promise((resolve) => $("login").addEventListener("submit", resolve, { once: true }));
        continue;
      }
      state(error.status ? error.message : "no connection, trying again", false);
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

// --- drawing ---

let isDue = false;

function due() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const started = performance.now(), slow = started - drawnSlow > SLOW_MS;
  icicle.now = now();
  showTiles();
  if (tab === "live") {
    if (slow && $("search").value) search(); // what it finds changes with the tree
    icicle.draw();
    if (slow) {
      plots.draw(now());
      showNext();
      showMemory();
      showScale();
    }
  } else if (tab === "requests") {
    requests.drawRequests();
    requests.drawHeld();
    if (slow) requests.drawMisses();
  }
  else if (tab === "programs" && slow) requests.drawPrograms(now());
  if (slow) drawnSlow = performance.now();
  performance.mark("draw", { detail: { ms: performance.now() - started } });
}

function showTiles() {
  const last = plots.rows.at(-1), before = plots.rows.at(-6) ?? plots.rows[0], bounds = plots.latest;
  const rate = (column) => (last && before && last[0] > before[0] ? Math.max(last[column] - before[column], 0) / (last[0] - before[0]) : 0);
  const used = last ? 1 - last[7] / (last[7] + last[8] + last[9] + last[10]) : 0;
  // The list of one engine's requests comes more often than samples; samples are of all replicas.
  const [running, waiting] = fleet.size || requests.running === undefined ? [last?.[1] ?? 0, last?.[2] ?? 0] : [requests.running, requests.waiting];
  const tiles = [
    [bounds?.prompt ? percent(bounds.hits, bounds.prompt) : "–", bounds?.prompt ? `of prompt tokens reused, last ${plural(bounds.requests, "request")}; the optimum is ${percent(bounds.belady, bounds.prompt).replace(" ", "\u00a0")}` : "of prompt tokens reused"],
    [count(running), `running, ${count(waiting)} waiting`],
    [`${short(rate(5))}`, "output tokens a second"],
    [`${short(rate(3))}`, "prompt tokens a second, reused ones too"],
    [percent(used, 1), `of ${hello ? count(hello.slots) : 0} KV slots in use or cached`],
  ];
  const holder = $("tiles");
  if (!holder.children.length) holder.append(...tiles.map(() => make("div", { class: "tile" }, make("b"), make("span"))));
  tiles.forEach(([big, small], i) => {
    const [b, span] = holder.children[i].children;
    if (b.textContent !== big) b.textContent = big;
    if (span.textContent !== small) span.textContent = small;
  });
  $("tree-about").textContent = `${plural(tree.size, "node")}, ${count(tree.top.below)} tokens${tree.header.policy && tree.header.policy !== "none" ? `, evicted by ${tree.header.policy}` : ""}`;
}

function showNext() {
  const nodes = tree.nextEvicted(8), ago = (node) => {
    const at = tree.secondsAt(node.last);
    return at === null ? "long ago" : `${time(Math.max(now() - at, 0))} ago`;
  };
  const row = (node) => make("tr", { onclick: () => icicle.zoom(node) }, make("td", {}, `node ${node.id}${{ 0: " · its program is done", 2: " · kept for a program", 3: " · kept for a fork" }[kindOf(node.retention)] ?? ""}`), ...[count(node.tokens), count(node.end), count(node.hits), ago(node)].map((words) => make("td", { class: "number" }, words)));
  $("next").tBodies[0].replaceChildren(...nodes.map(row));
  $("next-about").textContent = nodes.length ? "leaves that no request holds, the first to go at the top" : "nothing can be evicted";
}

function showMemory() {
  const last = plots.rows.at(-1);
  if (!last) return;
  const parts = [["held by requests, from the cache", "sampled", last[9]], ["held by requests, their own", "forced", last[10]], ["cached, evictable", "cached", last[8]], ["free", "queued", last[7]]];
  const total = parts.reduce((sum, [, , n]) => sum + n, 0);
  fillStack($("kv"), parts.map(([, name, n]) => [n, name]), total);
  legend($("kv-legend"), parts.map(([words, name, n]) => [`${count(n)} ${words}`, name]));
  $("kv-about").textContent = `${count(total)} token slots`;
  showTiers();
}

function showTiers() {
  const holder = $("tiers");
  if (holder.children.length !== 2 * tiers.length) holder.replaceChildren(...tiers.flatMap(() => [make("div", { class: "stack" }), make("div", { class: "legend" })]));
  tiers.forEach(([name, used, places, fetched], i) => {
    fillStack(holder.children[2 * i], [[used, "cached"], [places - used, "queued"]], places);
    const words = name === "peer" ? `${count(fetched)} prompt tokens fetched from other replicas` : `${count(used)} of ${count(places)} tokens ${TIERS[name] ?? name}, ${count(fetched)} prompt tokens fetched from there`;
    legend(holder.children[2 * i + 1], [[words, "cached"]]);
  });
}

function showScale() {
  legend($("scale"), SCALES[icicle.mode]());
}

// --- tabs, theme, search ---

function search() {
  const words = $("search").value, found = icicle.search(words);
  $("search").classList.toggle("bad", Boolean(words) && !found);
}

function open(name) {
  tab = name;
  for (const node of document.querySelectorAll(".tab")) node.hidden = node.dataset.tab !== name;
  for (const node of document.querySelectorAll("#tabs [data-tab]")) node.setAttribute("aria-selected", node.dataset.tab === name);
  history.replaceState(null, "", `#${name}`);
  drawnSlow = 0;
  due();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readColors();
  drawnSlow = 0;
  due();
}

for (const button of document.querySelectorAll("#tabs [data-tab]")) button.addEventListener("click", () => open(button.dataset.tab));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("color").append(...MODES.map(([value, words]) => make("option", { value }, words)));
$("color").addEventListener("change", (event) => {
  icicle.mode = event.target.value;
  icicle.ranked = 0;
  icicle.redraw();
  showScale();
});
$("search").addEventListener("input", search);
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  storeKey($("key").value.trim());
  $("key").value = "";
});
document.addEventListener("keydown", (event) => event.key === "Escape" && tab === "live" && !/INPUT|TEXTAREA/.test(event.target.tagName) && icicle.back());

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const known = [...document.querySelectorAll(".tab")].map((node) => node.dataset.tab);
open(known.includes(location.hash.slice(1)) ? location.hash.slice(1) : "live");
state("connecting", false);
setInterval(due, 1000); // ages grow even when nothing happens
follow();
