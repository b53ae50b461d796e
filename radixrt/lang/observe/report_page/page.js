"use strict";
// Text from the run reaches the page through textContent alone.
const run = JSON.parse(document.getElementById("run").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const LARGE_FORK = 12; // forks with more branches than this start folded
const KINDS = [["cached", "reused"], ["computed", "computed"], ["sampled", "generated"], ["forced", "forced by a grammar"]];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const count = (n) => n.toLocaleString("en-US");
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : noun.endsWith("h") ? "es" : "s"}`;
const isWide = (char) => /[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\ud83c-\ud83e]/.test(char);
// How many characters of a text have room in so many pixels of the timeline's labels.
const charsWithin = (text, pixels) => {
  let most = 0;
  for (let used = 0; most <= text.length; most++) {
    used += isWide(text[most] ?? "") ? 12 : 6.4;
    if (used > pixels) break;
  }
  return most;
};
const oneLine = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text).replace(/\s*\n\s*/g, " ⏎ ");

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  return seconds < 99.5 ? `${seconds.toFixed(2)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

// --- the run ---

const branches = new Map(run.branches.map((branch) => [branch.id, { ...branch, calls: [], forks: new Map(), depth: 0 }]));
const calls = new Map(run.calls.map((call) => [call.id, call]));
for (const branch of branches.values()) {
  const parent = branches.get(branch.parent);
  if (!parent) continue;
  branch.depth = parent.depth + 1;
  if (!parent.forks.has(branch.group)) parent.forks.set(branch.group, []);
  parent.forks.get(branch.group).push(branch);
}
for (const call of run.calls) branches.get(call.branch).calls.push(call);
const roots = [...branches.values()].filter((branch) => !branches.has(branch.parent));
const span = Math.max(run.wall_s, ...run.calls.map((call) => call.end ?? call.start ?? call.queued), 1e-6);

const started = (call) => call.start ?? call.ready;
const begun = (call) => call.admitted ?? started(call); // by the engine, where it says so
const ended = (call) => call.end ?? span;
const label = (call) => call.name || call.kind;
const typeOf = (call) => (call.kind === "select" ? "select" : call.type === "str" ? "" : call.type);
const tokensOf = (call) => ({
  cached: call.cached, computed: call.prompt - call.cached, sampled: call.out - call.forced, forced: call.forced,
});

function sum(list) {
  const total = { calls: list.length, prompt: 0, cached: 0, out: 0, forced: 0, seconds: 0 };
  for (const call of list) {
    for (const name of ["prompt", "cached", "out", "forced"]) total[name] += call[name];
    if (call.start !== null) total.seconds += ended(call) - call.start;
  }
  return total;
}

function under(branch) { // its calls and those of the branches below it
  const list = [...branch.calls];
  for (const group of branch.forks.values()) for (const child of group) list.push(...under(child));
  return list;
}

function promptOf(call) { // [what an earlier call's prompt began with too, the rest]
  const chain = [];
  for (let one = call; one.base !== null; one = calls.get(one.base)) chain.push(one);
  let same = "", before = chain.length ? calls.get(chain.at(-1).base).prompt_text : "";
  for (const one of chain.reverse()) {
    same = before.slice(0, one.chars);
    before = same + one.prompt_text;
  }
  return [same, call.prompt_text];
}

const LABEL = /(\[image \d+ x \d+ [0-9a-f]{32}\])/, pictures = new Map(Object.entries(run.pictures));

function* shown([same, own]) { // the nodes of a prompt, with pictures in place of their labels
  let at = 0;
  for (const piece of (same + own).split(LABEL)) {
    const grey = Math.min(Math.max(same.length - at, 0), piece.length), url = pictures.get(piece);
    at += piece.length;
    if (url) yield make("figure", {}, make("img", { src: url, alt: piece }), piece.replace(/ [0-9a-f]{32}/, ""));
    else yield* [make("span", { class: "same" }, piece.slice(0, grey)), piece.slice(grey)];
  }
}

// --- totals ---

function stack(tokens, scale) {
  const total = KINDS.reduce((all, [kind]) => all + tokens[kind], 0);
  const bar = make("div", { class: "stack" });
  for (const [kind] of KINDS) {
    const part = make("i");
    part.style.width = `${(100 * tokens[kind]) / (scale || total || 1)}%`;
    part.style.background = `var(--${kind})`;
    bar.append(part);
  }
  return bar;
}

function showTotals() {
  const total = sum(run.calls);
  $("name").textContent = run.name;
  const when = new Date(run.unix_time * 1000).toLocaleString("en-GB", { dateStyle: "long", timeStyle: "medium" });
  $("about").textContent = `on ${run.backend} · ${when} · ${run.running ? "still running" : `run ${run.program.slice(0, 8)}`}`;
  if (run.error !== null) {
    $("failure").textContent = run.error;
    $("failure").hidden = false;
  }
  const failed = run.calls.filter((call) => call.error !== null).length;
  const tiles = [
    [plural(total.calls, "call"), plural(branches.size, "branch") + (failed ? `, ${failed} failed` : "")],
    [time(span), `${(total.seconds / span).toFixed(1)} calls at once on average`],
    [percent(total.cached, total.prompt), "of prompt tokens reused"],
    [count(total.prompt - total.cached), `computed, of ${count(total.prompt)} prompt tokens`],
    [count(total.out), total.forced ? `output tokens, ${count(total.forced)} of them forced` : "output tokens"],
  ];
  $("tiles").append(...tiles.map(([big, small]) => make("div", { class: "tile" }, make("b", {}, big), make("span", {}, small))));
  const tokens = tokensOf(total);
  $("tokens").append(...stack(tokens).children);
  for (const [kind, words] of KINDS) {
    if (!tokens[kind]) continue;
    const key = make("span", { class: "key" }, `${count(tokens[kind])} ${words}`);
    key.style.setProperty("--c", `var(--${kind})`);
    $("legend").append(key);
  }
}

// --- the timeline ---

const view = { from: 0, to: span };
const bars = new Map(); // call id -> its bar
const GUTTER = 170, RIGHT = 14, AXIS = 22, LOAD = 34;

function rowsOf(branch, rows) { // a row for each branch with calls, more where its calls overlap; in tree order
  const lanes = [];
  for (const call of [...branch.calls].sort((a, b) => a.ready - b.ready || a.id - b.id)) {
    let lane = lanes.find((other) => ended(other.at(-1)) <= call.ready + 1e-6);
    if (!lane) lanes.push((lane = []));
    lane.push(call);
  }
  lanes.forEach((lane, index) => rows.push({ branch, calls: lane, first: index === 0 }));
  for (const group of branch.forks.values()) {
    for (const child of group) rowsOf(child, rows);
    group.lastRow = rows.at(-1);
  }
  return rows;
}

const siblingsOf = (branch) => branches.get(branch.parent)?.forks.get(branch.group) ?? [branch];
const rows = roots.flatMap((root) => rowsOf(root, []));
const thin = rows.length <= 60 ? 20 : rows.length <= 160 ? 8 : rows.length <= 400 ? 4 : 3; // of the branches of large forks
let below = AXIS + LOAD + 6;
for (const row of rows) {
  row.height = siblingsOf(row.branch).length > LARGE_FORK ? thin : 20;
  row.y = below;
  below += row.height;
}

function ticks(from, to, width) {
  const rough = (to - from) / Math.max(2, Math.min(8, width / 90)), unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
  const list = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to; k++) list.push(k * step);
  return list;
}

function tickText(t) {
  if (t === 0) return "0";
  return view.to - view.from < 0.2 ? `${+(1000 * t).toFixed(3)} ms` : `${+t.toFixed(4)} s`;
}

function drawTimeline() {
  const width = $("timeline").clientWidth || 1000, height = below + 4;
  const x = (t) => GUTTER + ((t - view.from) / (view.to - view.from)) * (width - GUTTER - RIGHT);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Timeline of the calls" });
  const clip = svg("clipPath", { id: "plot" });
  clip.append(svg("rect", { x: GUTTER, y: 0, width: width - GUTTER - RIGHT + 1, height }));
  chart.append(clip);
  const plot = svg("g", { "clip-path": "url(#plot)" });
  for (const t of ticks(view.from, view.to, width - GUTTER - RIGHT)) {
    chart.append(svg("line", { class: "grid", x1: x(t), x2: x(t), y1: AXIS, y2: height }));
    chart.append(svg("text", { x: x(t), y: 13, "text-anchor": "middle" }, tickText(t)));
  }
  drawLoad(chart, plot, x);
  bars.clear();
  for (const row of rows) drawRow(chart, plot, row, x, width);
  chart.append(plot);
  brush(chart, width, height);
  $("timeline").replaceChildren(chart);
}

function drawLoad(chart, plot, x) { // how many calls are open at each moment
  const steps = run.calls.filter((call) => call.start !== null).flatMap((call) => [[call.start, 1], [ended(call), -1]]);
  steps.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let open = 0;
  const levels = steps.map(([t, change]) => [t, (open += change)]);
  const most = Math.max(1, ...levels.map(([, level]) => level));
  const y = (level) => AXIS + LOAD - (level / most) * (LOAD - 4);
  let path = `M${x(0)},${y(0)}`, before = 0;
  for (const [t, level] of levels) {
    path += `L${x(t)},${y(before)}L${x(t)},${y(level)}`;
    before = level;
  }
  plot.append(svg("path", { class: "load", d: path + "Z" }));
  chart.append(svg("text", { x: GUTTER - 8, y: AXIS + LOAD - 4, "text-anchor": "end" }, `open calls, most ${most}`));
}

function drawRow(chart, plot, row, x, width) {
  const { branch, y, height } = row, siblings = siblingsOf(branch), labelled = height >= 14;
  if (labelled && siblings.indexOf(branch) % 2 === 1) {
    chart.append(svg("rect", { class: "band", x: GUTTER, y, width: width - GUTTER - RIGHT, height }));
  }
  const indent = Math.min(branch.depth, 6) * 12;
  if (row.first && labelled) {
    const words = branch.depth === 0 ? run.name : branch.key || branch.id;
    const text = oneLine(words, charsWithin(words, GUTTER - indent - 12));
    chart.append(svg("text", { class: branch.error === null ? "own" : "own bad", x: indent, y: y + height / 2 + 4 }, text));
  } else if (row.first && siblings[0] === branch) { // rows too thin for names: one bracket around the fork
    const end = siblings.lastRow.y + siblings.lastRow.height;
    chart.append(svg("path", { class: "bracket", d: `M${GUTTER - 5},${y + 1}h-5V${end - 1}h5` }));
    const middle = Math.min((y + end) / 2, y + 160);
    chart.append(svg("text", { class: "own", x: GUTTER - 18, y: middle + 4, "text-anchor": "end" }, plural(siblings.length, "branch")));
  }
  const gap = height >= 8 ? 2 : height >= 4 ? 0.75 : 0.5;
  for (const call of row.calls) plot.append(drawCall(call, y + gap, height - 2 * gap, x));
}

function drawCall(call, y, height, x) {
  const group = svg("g", { class: "call" });
  const part = (from, to, color) => {
    const left = x(from);
    group.append(svg("rect", { x: left, y, height, width: Math.max(x(to) - left, 1.5), fill: `var(--${color})`, rx: Math.min(2, height / 4) }));
  };
  if (call.ready < begun(call)) part(call.ready, begun(call), "queued");
  if (call.start !== null) {
    const middle = call.first ?? (call.kind === "select" ? ended(call) : begun(call));
    if (begun(call) < middle) part(begun(call), middle, "computed");
    if (middle < ended(call)) part(middle, ended(call), call.error === null ? "sampled" : "error");
  }
  group.addEventListener("mousemove", (event) => showTip(call, event));
  group.addEventListener("mouseleave", () => ($("tip").hidden = true));
  bars.set(call.id, group);
  group.dataset.call = call.id;
  return group;
}

function brush(chart, width, height) { // drag: zoom; click on a bar: details
  let from = null;
  const mark = svg("rect", { class: "brush", y: AXIS, height: height - AXIS, width: 0, x: 0 });
  chart.append(mark);
  const place = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.min(Math.max(((event.clientX - box.left) / box.width) * width, GUTTER), width - RIGHT);
  };
  const at = (px) => view.from + ((px - GUTTER) / (width - GUTTER - RIGHT)) * (view.to - view.from);
  chart.addEventListener("pointerdown", (event) => {
    from = place(event);
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = place(event);
    mark.setAttribute("x", Math.min(from, to));
    mark.setAttribute("width", Math.abs(to - from));
  });
  chart.addEventListener("pointerup", (event) => {
    const to = place(event), left = Math.min(from, to), right = Math.max(from, to);
    from = null;
    mark.setAttribute("width", 0);
    if (right - left > 6) {
      [view.from, view.to] = [at(left), at(right)];
      drawTimeline();
      return;
    }
    const bar = document.elementFromPoint(event.clientX, event.clientY)?.closest(".call");
    if (bar) pick(Number(bar.dataset.call));
  });
  chart.addEventListener("dblclick", () => {
    [view.from, view.to] = [0, span];
    drawTimeline();
  });
}

function showTip(call, event) {
  const tip = $("tip");
  const kind = typeOf(call);
  const lines = [
    `${time(call.end === null ? null : call.end - started(call))}${begun(call) > call.ready + 0.0005 ? `, ${time(begun(call) - call.ready)} of waiting` : ""}`,
    `${count(call.prompt)} prompt tokens, ${percent(call.cached, call.prompt)} reused; ${count(call.out)} output`,
  ];
  const result = make("div", { class: call.error === null ? "out" : "out bad" }, oneLine(call.error ?? call.text, 220));
  const branch = branches.get(call.branch);
  tip.replaceChildren(
    make("b", {}, label(call) + (kind ? `: ${kind}` : "") + (branch.key ? ` in ${branch.key}` : "")),
    ...lines.map((line) => make("div", {}, line)), result,
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}

// --- the tree of calls ---

const folded = new Set(); // keys of groups and branches that are folded
const widest = Math.max(1, ...run.calls.map((call) => call.prompt + call.out));
let wanted = "";
const order = []; // ids of the calls in the table, for the arrow keys

const words = (call) => `${branches.get(call.branch).key}\n${call.name}\n${call.text}\n${call.error ?? ""}`;
const matches = (call) => !wanted || words(call).toLowerCase().includes(wanted);
const anyMatch = (branch) => !wanted || under(branch).some(matches);

function fill(body) {
  order.length = 0;
  body.replaceChildren();
  for (const root of roots) fillBranch(body, root, 0);
  $("shown").textContent = wanted ? `${count(order.length)} found` : "";
}

function fillBranch(body, branch, depth) {
  const items = branch.calls.filter(matches).map((call) => [call.queued, 1, call]);
  for (const [group, list] of branch.forks) items.push([list[0].created, 0, list, `${branch.id}:${group}`]);
  items.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (const [, isCall, item, key] of items) {
    if (isCall) {
      order.push(item.id);
      body.append(callRow(item, depth));
      continue;
    }
    const kept = item.filter(anyMatch);
    if (!kept.length) continue;
    const failed = item.filter((branch) => branch.error !== null).length;
    const error = failed ? `${plural(failed, "branch")} failed` : null;
    body.append(groupRow(key, `fork into ${plural(item.length, "branch")}`, item.flatMap(under), depth, error));
    if (folded.has(key) && !wanted) continue;
    for (const child of kept) {
      const below = under(child), words = child.key || child.id, inner = depth + 1;
      if (below.length === 1 && child.error === null) { // one call: its row stands for the branch
        order.push(below[0].id);
        body.append(callRow(below[0], inner, words));
        continue;
      }
      body.append(groupRow(child.id, words, below, inner, child.error));
      if (!folded.has(child.id) || wanted) fillBranch(body, child, inner + 1);
    }
  }
}

function cells(total, depth, name, seconds, at, result, bad) {
  const indent = make("span");
  indent.style.paddingLeft = `${depth * 18}px`;
  const bar = stack(tokensOf(total), total.calls ? 0 : widest);
  return [
    make("td", { class: bad ? "label bad" : "label" }, indent, ...name),
    make("td", { class: "number" }, count(total.prompt)),
    make("td", { class: "number" }, percent(total.cached, total.prompt)),
    make("td", { class: "number" }, count(total.out)),
    make("td", { class: "bar" }, bar),
    make("td", { class: "number" }, time(seconds)),
    make("td", { class: "number quiet" }, time(at)),
    make("td", { class: bad ? "result bad" : "result" }, result),
  ];
}

function callRow(call, depth, branch) {
  const chance = call.probabilities.length ? `  (${percent(Math.max(...call.probabilities), 1)})` : "";
  const notes = [typeOf(call), call.of > 1 ? `${call.index + 1} of ${call.of}` : ""].filter(Boolean).join(" · ");
  const name = [make("span", { class: "twist" }), ...(branch ? [make("b", {}, branch), " "] : []), label(call), make("small", {}, notes)];
  const seconds = call.start === null || call.end === null ? null : call.end - call.start;
  const result = oneLine(call.error ?? call.text, 160) + chance;
  const row = make("tr", { "data-call": call.id, tabindex: 0, onclick: () => pick(call.id) });
  row.append(...cells(call, depth, name, seconds, call.start, result, call.error !== null));
  row.addEventListener("keydown", (event) => event.key === "Enter" && pick(call.id));
  return row;
}

function groupRow(key, words, list, depth, error) {
  const closed = folded.has(key) && !wanted;
  const name = [make("span", { class: "twist" }, closed ? "▸" : "▾"), words, make("small", {}, plural(list.length, "call"))];
  const first = list.length ? Math.min(...list.map(started)) : 0;
  const last = list.length ? Math.max(...list.map(ended)) : 0;
  const toggle = () => {
    if (!folded.delete(key)) folded.add(key);
    fill($("calls").tBodies[0]);
  };
  const row = make("tr", { class: "branch", tabindex: 0, onclick: toggle });
  const message = error === null ? "" : oneLine(error, 160);
  row.append(...cells(sum(list), depth, name, last - first, first, message, Boolean(error)));
  row.addEventListener("keydown", (event) => event.key === "Enter" && toggle());
  return row;
}

// --- one call ---

let picked = null;

function pick(id) {
  picked = id;
  document.querySelectorAll(".picked").forEach((node) => node.classList.remove("picked"));
  $("detail").hidden = id === null;
  $("tip").hidden = true;
  if (id === null) return;
  bars.get(id)?.classList.add("picked");
  const row = document.querySelector(`tr[data-call="${id}"]`);
  row?.classList.add("picked");
  showDetail(calls.get(id));
}

function facts(call) {
  const branch = branches.get(call.branch);
  const depends = call.depends.map((id) => (calls.has(id) ? `${label(calls.get(id))} (${id})` : id)).join(", ");
  const seen = [
    ["Branch", branch.depth === 0 ? "the program itself" : `${branch.key || branch.id} (${branch.id})`],
    ["Goes on from", depends || "nothing before it"],
    ["Prompt", `${count(call.prompt)} tokens: ${count(call.cached)} reused, ${count(call.prompt - call.cached)} computed`],
    ["Output", `${count(call.out)} tokens${call.forced ? `, ${count(call.forced)} forced by a grammar` : ""}, ended by ${call.finish || "nothing yet"}`],
    ["Asked for", `at ${time(call.queued)}${call.ready > call.queued + 0.0005 ? `, ready at ${time(call.ready)}` : ""}`],
    ["Sent", call.start === null ? "not yet" : `at ${time(call.start)}, ${call.end === null ? "still running" : `took ${time(call.end - call.start)}`}`],
  ];
  if (begun(call) > call.ready + 0.0005) seen.push(["Waited", time(begun(call) - call.ready)]);
  if (call.first !== null) seen.push(["To the first token", `${time(call.first - begun(call))} of work`]);
  if (call.fork_len) seen.push(["Told the engine", `${count(call.fork_len)} tokens shared by ${plural(call.siblings, "branch")}`]);
  if (call.rerendered) seen.push(["Note", "the chat template was rendered whole again"]);
  if (call.method) seen.push(["Method", call.method.replaceAll("_", " ")]);
  for (const [name, value] of Object.entries(call.sampling)) {
    seen.push([name, typeof value === "string" ? oneLine(value, 300) : JSON.stringify(value)]);
  }
  const list = make("dl");
  for (const [name, value] of seen) list.append(make("dt", {}, name), make("dd", {}, String(value)));
  return list;
}

function scores(call) {
  return call.choices.map((choice, index) => {
    const share = call.probabilities[index];
    const bar = make("div", { class: "stack" }, make("i"));
    bar.firstChild.style.width = `${100 * (share ?? 0)}%`;
    bar.firstChild.style.background = "var(--sampled)";
    const row = make("div", { class: choice === call.text ? "choice taken" : "choice" });
    row.append(make("span", {}, choice), bar, make("span", { class: "number" }, share === undefined ? "" : percent(share, 1)));
    return row;
  });
}

function showDetail(call) {
  const kind = typeOf(call);
  const move = (step) => {
    const next = order[order.indexOf(call.id) + step];
    if (next !== undefined) pick(next);
  };
  const tools = make("div", {},
    make("button", { type: "button", title: "Previous call", onclick: () => move(-1) }, "↑"),
    make("button", { type: "button", title: "Next call", onclick: () => move(1) }, "↓"),
    make("button", { type: "button", title: "Close", onclick: () => pick(null) }, "✕"));
  const prompt = promptOf(call);
  const panel = $("detail");
  panel.replaceChildren(
    make("div", { class: "head" }, make("h2", {}, label(call), make("span", { class: "quiet" }, kind)), tools),
    facts(call), stack(tokensOf(call)),
  );
  panel.lastChild.style.marginTop = "14px";
  if (call.error !== null) panel.append(make("h3", {}, "Error"), make("pre", { class: "bad" }, call.error));
  if (call.choices.length) panel.append(make("h3", {}, "Choices"), ...scores(call));
  else panel.append(make("h3", {}, "Output"), make("pre", {}, call.text || "(nothing)"));
  const shared = call.base === null ? "" : `, grey where it is that of ${label(calls.get(call.base))} (${call.base})`;
  if (prompt.join("")) panel.append(make("h3", {}, `Prompt${shared}`), make("pre", {}, ...shown(prompt)));
  panel.scrollTop = 0;
  panel.move = move;
}

// --- putting it together ---

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function foldLargeForks() {
  for (const branch of branches.values()) {
    for (const [group, list] of branch.forks) if (list.length > LARGE_FORK) folded.add(`${branch.id}:${group}`);
  }
}

function listen() {
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("filter").addEventListener("input", (event) => {
    wanted = event.target.value.toLowerCase();
    fill($("calls").tBodies[0]);
  });
  $("expand").addEventListener("click", () => {
    folded.clear();
    fill($("calls").tBodies[0]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || picked === null) return;
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") pick(null);
    else if (step) {
      event.preventDefault();
      $("detail").move(step);
    }
  });
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.round(entry.contentRect.width) === width) return;
    width = Math.round(entry.contentRect.width);
    drawTimeline();
  }).observe($("timeline"));
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
showTotals();
for (const [color, words] of [["queued", "waiting"], ["computed", "prompt, until the first token"], ["sampled", "output"]]) {
  const key = make("span", { class: "key" }, words);
  key.style.setProperty("--c", `var(--${color})`);
  $("phases").append(key);
}
if (run.calls.length) drawTimeline();
else $("timeline-section").hidden = true;
foldLargeForks();
if (!run.calls.length) $("expand").parentElement.hidden = true;
fill($("calls").tBodies[0]);
listen();
const linked = Number(location.hash.replace("#call-", ""));
if (location.hash.startsWith("#call-") && calls.has(linked)) pick(linked);
