// Requests and programs: tables of what is in the scheduler and of what has ended, and why prompts missed the cache.
import { $, clockTime, color, count, fillStack, legend, make, percent, plural, prepare, stack, TIERS, time } from "./tools.js";
import { kindOf, LEASED } from "./tree.js";

const KEPT = 600, ROW = 29; // pixels, as in the style sheet
const MISS = ["rid", "at", "prompt", "cached", "matched", "reusable", "beside", "evicted", "reset", "evictedFor", "together", "fresh", "ended", "number", "program", "branch", "out", "endedAt", "firstToken", "fetched"];
const CAUSES = [ // tokens of a prompt by what became of them
  ["reused", "cached", (m) => m.cached],
  ["new", "computed", (m) => m.fresh],
  ["evicted before", "error", (m) => m.evicted + m.reset],
  ["computed twice at once", "sampled", (m) => m.together],
  ["others", "queued", (m) => Math.max(m.prompt - m.cached - m.fresh - m.evicted - m.reset - m.together, 0)],
];

// Tokens by tier, with the words before each.
const inTiers = (tokens, words) => Object.entries(tokens ?? {}).filter(([, n]) => n).map(([tier, n]) => `${count(n)} ${words} ${TIERS[tier] ?? tier}`);

export function why(miss) {
  if (!miss.reusable) return "the whole prompt is computed: its log-probabilities or hidden states were asked for";
  const parts = inTiers(miss.fetched, "reused were");
  if (miss.evicted) parts.push(`${count(miss.evicted)} evicted ${time(miss.evictedFor)} before`);
  if (miss.reset) parts.push(`${count(miss.reset)} lost when the cache was emptied`);
  if (miss.together) parts.push(`${count(miss.together)} computed by another request at the same time`);
  if (miss.matched > miss.cached) parts.push(`${count(miss.matched - miss.cached)} read again for the recurrent state`);
  if (miss.fresh) {
    const from = miss.beside ? `, parts from ${plural(miss.beside, "cached continuation")} after ${count(miss.matched)} tokens` : miss.matched ? "" : ", nothing cached begins like it";
    parts.push(`${count(miss.fresh)} new${from}`);
  }
  const rest = miss.prompt - miss.cached - miss.fresh - miss.evicted - miss.reset - miss.together - (miss.matched - miss.cached);
  if (rest > 1 && miss.ended === null) parts.push(`${count(rest - 1)} being computed`);
  if (!parts.length) return miss.prompt - miss.cached === 1 ? "all but the last token, which is always computed" : "all reused but the end";
  return parts.join("; ");
}

const OBSTACLES = {
  "": () => "its turn comes",
  requests: () => "as many requests run as may",
  prefix: () => "a running request is computing more of it",
  slots: (q) => `it needs ${count(q.needed_slots)} KV slots, and ${count(q.free_slots)} are left`,
  programs: (q) => `the ${count(q.free_slots)} KV slots that are left are kept for programs that began before`,
  restart: () => "the ModelRunner starts anew",
};

const WAITS = { requests: "a place", prefix: "its prefix", slots: "slots", programs: "programs", restart: "a restart" };

// The same of a waiting request, if it were admitted now, and what it waits for.
export function expected(row) {
  const queue = row.queue;
  if (!queue) return row.retractions ? "" : "far back in the queue";
  const waits = `waits: ${(OBSTACLES[queue.obstacle] ?? OBSTACLES[""])(queue)}`, cached = Math.max(row.cached_tokens, 0);
  if (queue.new === undefined) return waits;
  const { matched_tokens: matched, reusable_tokens: reusable, continuations: beside, evicted, reset, evicted_s: evictedFor, new: fresh } = queue;
  const causes = why({ prompt: row.prompt_tokens, cached, matched: Math.max(matched, cached), reusable, beside, evicted, reset, evictedFor, together: 0, fresh: reusable < row.prompt_tokens && matched === reusable ? 0 : fresh, ended: "waiting" });
  return [causes, ...inTiers(queue.kept, "of it are"), waits].join("; ");
}

const HOLDS = { // of the router; q.on is the replica's name
  "": () => "requests before it go first",
  replicas: () => "no replica takes new requests",
  prompts: (q) => `${q.on} has ${count(q.tokens_ahead)} prompt tokens ahead`,
  requests: (q) => `as many requests run on ${q.on} as may`,
  slots: (q) => `it needs ${count(q.needed_slots)} KV slots, and open requests will take all of ${q.on}`,
  program_slots: (q) => `its program has not begun, and ${q.on} keeps the ${count(q.free_slots)} KV slots that are left for those that have`,
  programs: (q) => `its program has not begun, and another one would slow down those that have on ${q.on}`,
};

const HOLDS_FOR = { replicas: "a replica", prompts: "prompts ahead", requests: "a place", slots: "slots", program_slots: "programs", programs: "programs" };

// What a request that the router holds waits for, and where its prefix is.
export function held(row) {
  const on = `replica ${row.replica}`, bound = row.replica !== null, parts = [];
  if (!row.best_tokens) parts.push("no replica has its prefix");
  else {
    const lacks = bound && row.best_replica !== row.replica && row.cached_tokens !== row.best_tokens;
    parts.push(`replica ${row.best_replica} has ${count(row.best_tokens)} of it cached${lacks ? `, ${on} ${row.cached_tokens ? count(row.cached_tokens) : "none"}` : ""}`);
  }
  if (row.output_tokens) parts.push("its replica died, and it goes on elsewhere");
  return [(HOLDS[row.obstacle] ?? HOLDS[""])({ ...row, on }), ...parts].join("; ");
}

// A table body whose rows are kept, by key: only what has changed is written. Of a long table, only the rows that are in
// sight are there, between two that are as high as the rest.
export class Rows {
  constructor(table) {
    this.body = table.tBodies[0];
    this.frame = table.parentElement;
    this.rows = new Map();
    this.spacers = [0, 1].map(() => make("tr", { class: "spacer" }, make("td", { colspan: table.tHead.rows[0].cells.length })));
    this.frame.addEventListener("scroll", () => this.show(this.items, this.build), { passive: true });
    this.items = [];
  }

  keyOf(node) { // of the row that holds a node; undefined for none
    const tr = node.closest("tr");
    for (const [key, row] of this.rows) if (row.node === tr) return key;
  }

  // build(item) returns [key, class, [text, or [class, text], or [class, what it depends on, maker of an element], ...]]
  show(items, build) {
    [this.items, this.build] = [items, build];
    let from = 0, to = items.length;
    if (items.length > 60 && this.frame.clientHeight) {
      from = Math.max(Math.floor(this.frame.scrollTop / ROW) - 10, 0);
      to = Math.min(from + Math.ceil(this.frame.clientHeight / ROW) + 20, items.length);
    }
    const seen = new Set(), wanted = [this.spacers[0]];
    this.spacers[0].firstChild.style.height = `${from * ROW}px`;
    this.spacers[1].firstChild.style.height = `${(items.length - to) * ROW}px`;
    for (const item of items.slice(from, to)) {
      const [key, kind, cells] = build(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = { node: make("tr", {}, ...cells.map(() => make("td"))), cells: [] };
        this.rows.set(key, row);
      }
      if (row.node.className !== kind) row.node.className = kind;
      cells.forEach((cell, i) => this.write(row, i, cell));
      wanted.push(row.node);
    }
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.node.remove();
      this.rows.delete(key);
    }
    wanted.push(this.spacers[1]);
    wanted.forEach((node, i) => this.body.children[i] !== node && this.body.insertBefore(node, this.body.children[i] ?? null));
  }

  write(row, i, cell) {
    const [kind, content, maker] = Array.isArray(cell) ? cell : ["", cell];
    if (row.cells[i] === content) return;
    row.cells[i] = content;
    const node = row.node.children[i];
    node.className = kind;
    if (maker) node.replaceChildren(maker());
    else node.textContent = content;
    if (kind.includes("clipped")) node.title = content;
  }
}

const number = (n) => ["number", count(n)];

export class Requests {
  constructor(tree) {
    this.tree = tree;
    this.rows = [];
    this.holds = [];
    this.held = { waiting: 0, rows: [] }; // in the router
    this.misses = new Map(); // by number, in order of admission
    this.byRid = new Map();
    this.program = null; // whose calls are listed
    this.tables = { rows: new Rows($("rows")), held: new Rows($("held")), misses: new Rows($("misses")), programs: new Rows($("programs")), calls: new Rows($("calls")) };
    $("programs").tBodies[0].addEventListener("click", (event) => {
      this.program = this.tables.programs.keyOf(event.target) ?? this.program;
      this.drawCalls();
    });
  }

  takeRequests(line, replica) { // replica: whose requests they are; null for an engine without a router
    this.replica = replica;
    [this.rows, this.holds, this.running, this.waiting] = [line.rows, line.holds, line.running, line.waiting];
  }

  takeMisses(line) {
    for (const columns of line.rows) {
      const miss = Object.fromEntries(MISS.map((name, i) => [name, columns[i]]));
      this.misses.set(miss.number, miss);
      this.byRid.set(miss.rid, miss);
    }
    for (const [key, miss] of this.misses) {
      if (this.misses.size <= KEPT) break;
      this.misses.delete(key);
      if (this.byRid.get(miss.rid) === miss) this.byRid.delete(miss.rid);
    }
  }

  takeHeld(line) {
    this.held = line;
  }

  forget() {
    this.misses.clear();
    this.byRid.clear();
  }

  *holdersOf(node) { // words for the requests and programs that hold it
    const isBelow = (id) => {
      for (let each = this.tree.nodes.get(id); each; each = each.parent) if (each === node) return true;
      return false;
    };
    for (const [id, program, retention] of this.holds) if (id === node.id) yield `program ${program}: ${kindOf(retention) === LEASED ? "prefix of its fork" : "goes on from here"}`;
    for (const row of this.rows) if (row.node && isBelow(row.node)) yield `${row.state} ${row.rid}${row.program ? ` of ${row.program}` : ""}`;
  }

  *nodesOf(words) {
    for (const row of this.rows) if (row.node && `${row.rid}\n${row.program}`.toLowerCase().includes(words)) yield [row.node];
    for (const [id, program] of this.holds) if (program.toLowerCase().includes(words)) yield [id];
  }

  // --- drawing ---

  drawRequests() {
    const { running = 0, waiting = 0 } = this, where = this.replica === null || this.replica === undefined ? "" : ` in replica ${this.replica}`;
    $("rows-about").textContent = running || waiting ? `${plural(running, "request")} running, ${count(waiting)} waiting${where}` : `no request is open${where}`;
    this.tables.rows.show(this.rows, (row) => {
      const miss = this.byRid.get(row.rid), cached = Math.max(row.cached_tokens, 0);
      const reason = row.state === "waiting" ? expected(row) : miss ? why(miss) : "admitted before this page looked";
      const computed = Math.min(Math.max(row.computed_tokens - cached, 0), row.prompt_tokens - cached);
      const parts = [[cached, "cached"], [computed, "computed"], [row.prompt_tokens - cached - computed, "queued"], [row.output_tokens, "sampled"]];
      return [row.rid, row.state === "waiting" ? "waiting" : "", [
        ["clipped mono", row.rid], row.state + (row.queue && WAITS[row.queue.obstacle] ? ` for ${WAITS[row.queue.obstacle]}` : "") + (row.constrained ? " · constrained" : "") + (row.retractions ? ` · retracted ${row.retractions}×` : ""),
        ["clipped", row.program ? `${row.program}${row.branch ? ` / ${row.branch}` : ""}` : "–"], number(row.prompt_tokens),
        ["number", row.cached_tokens < 0 ? "–" : percent(cached, row.prompt_tokens)], ["number", `${count(row.output_tokens)} of ${count(row.max_tokens)}`],
        ["bar", parts.map(([n]) => n).join(), () => stack(parts)], ["clipped why", reason], ["number", time(row.waited_s)], ["number", time(row.age_s)],
      ]];
    });
  }

  drawHeld() {
    const { waiting, rows } = this.held;
    $("held-section").hidden = !waiting;
    if (!waiting) return;
    $("held-about").textContent = `${plural(waiting, "request")} waiting${rows.length < waiting ? `, the first ${count(rows.length)} of them here` : ""}; a replica gets one when it can soon compute it, and another one if that is sooner`;
    this.tables.held.show(rows, (row) => {
      const parts = [[row.best_tokens, "cached"], [row.prompt_tokens - row.best_tokens, "queued"], [row.output_tokens, "sampled"]];
      return [row.rid, "waiting", [
        ["clipped mono", row.rid], (row.replica === null ? "waiting" : `for replica ${row.replica}`) + (HOLDS_FOR[row.obstacle] ? `, ${HOLDS_FOR[row.obstacle]}` : "") + (row.constrained ? " · constrained" : ""),
        ["clipped", row.program ? `${row.program}${row.branch ? ` / ${row.branch}` : ""}` : "–"], number(row.prompt_tokens),
        ["number", percent(row.best_tokens, row.prompt_tokens)], ["number", row.kind === "score" ? "–" : `${count(row.output_tokens)} of ${count(row.max_tokens)}`],
        ["bar", parts.map(([n]) => n).join(), () => stack(parts)], ["clipped why", held(row)], ["number", time(row.age_s)],
      ]];
    });
  }

  drawMisses() {
    const all = [...this.misses.values()].reverse(), total = all.reduce((sum, miss) => sum + miss.prompt, 0);
    const sums = CAUSES.map(([words, name, of]) => [words, name, all.reduce((sum, miss) => sum + of(miss), 0)]);
    $("misses-about").textContent = all.length ? `${plural(all.length, "request")} since this page looks, ${percent(sums[0][2], total)} of ${count(total)} prompt tokens reused` : "requests that are admitted from now on appear here";
    fillStack($("miss-stack"), sums.map(([, name, n]) => [n, name]), total);
    legend($("miss-legend"), sums.filter(([, , n]) => n).map(([words, name, n]) => [`${count(n)} ${words}`, name]));
    this.tables.misses.show(all, (miss) => [miss.number, miss.ended === "error" ? "bad" : "", [
      ["clipped mono", miss.rid], ["clipped", miss.program ? `${miss.program}${miss.branch ? ` / ${miss.branch}` : ""}` : "–"], number(miss.prompt), ["number", percent(miss.cached, miss.prompt)],
      ["bar", CAUSES.map(([, , of]) => of(miss)).join(), () => stack(CAUSES.map(([, name, of]) => [of(miss), name]))],
      ["clipped why", why(miss)], ["number", miss.ended === null ? "–" : count(miss.out)], miss.ended === null ? "runs" : `${miss.ended} after ${time(miss.endedAt - miss.at)}`, ["number", clockTime(miss.at)],
    ]]);
  }

  drawPrograms(now) {
    const programs = new Map();
    for (const miss of this.misses.values()) {
      if (!miss.program) continue;
      if (!programs.has(miss.program)) programs.set(miss.program, []);
      programs.get(miss.program).push(miss);
    }
    const kept = new Map();
    for (const [, program] of this.holds) kept.set(program, (kept.get(program) ?? 0) + 1);
    $("programs-about").textContent = programs.size ? `${plural(programs.size, "program")} since this page looks` : "calls that carry a program hint appear here";
    this.tables.programs.show([...programs].reverse(), ([name, calls]) => {
      const sum = (of) => calls.reduce((all, call) => all + of(call), 0), open = calls.filter((call) => call.ended === null).length;
      const from = Math.min(...calls.map((call) => call.at)), to = Math.max(...calls.map((call) => (call.ended === null ? now : call.endedAt)));
      const parts = [...CAUSES.map(([, color, of]) => [sum(of), color]), [sum((call) => call.out), "forced"]];
      return [name, "", [
        ["clipped mono", name], ["number", open ? `${count(calls.length)} (${open} open)` : count(calls.length)], number(new Set(calls.map((call) => call.branch)).size),
        number(sum((call) => call.prompt)), ["number", percent(sum((call) => call.cached), sum((call) => call.prompt))], number(sum((call) => call.out)),
        ["bar", parts.map(([n]) => n).join(), () => stack(parts)], ["number", kept.has(name) ? plural(kept.get(name), "prefix") : "–"], ["number", time(to - from)],
        ["lanes", `${calls.length} ${open} ${Math.round(to)}`, () => lanes(calls, from, to)],
      ]];
    });
    this.drawCalls();
  }

  drawCalls() { // of the program that was clicked, and why their prompts missed the cache
    $("calls-section").hidden = this.program === null;
    if (this.program === null) return;
    const calls = [...this.misses.values()].filter((miss) => miss.program === this.program), begun = calls[0]?.at;
    $("calls-about").textContent = `${this.program}: ${calls.length ? plural(calls.length, "call") : "too long ago"}`;
    this.tables.calls.show(calls, (miss) => [miss.number, miss.ended === "error" ? "bad" : "", [
      ["clipped mono", miss.rid], ["clipped", miss.branch || "–"], ["number", time(miss.at - begun)], number(miss.prompt), ["number", percent(miss.cached, miss.prompt)], number(miss.prompt - miss.cached),
      ["bar", CAUSES.map(([, , of]) => of(miss)).join(), () => stack(CAUSES.map(([, name, of]) => [of(miss), name]))], ["clipped why", why(miss)],
      ["number", miss.ended === null ? "–" : count(miss.out)], miss.ended === null ? "runs" : `${miss.ended} after ${time(miss.endedAt - miss.at)}`,
    ]]);
  }
}

// The calls of a program as bars, in as few lanes as they need.
export function lanes(calls, from, to, height = 20) {
  const canvas = make("canvas"), ends = [], places = [];
  for (const call of calls) {
    let lane = ends.findIndex((end) => end <= call.at + 1e-6);
    if (lane < 0) lane = ends.push(0) - 1;
    ends[lane] = call.ended === null ? to : call.endedAt;
    places.push([call, lane, ends[lane]]);
  }
  const each = height / Math.max(ends.length, 4);
  const holder = make("div", {}, canvas);
  requestAnimationFrame(() => {
    const [context, width] = prepare(canvas, height), x = (at) => ((at - from) / Math.max(to - from, 1e-6)) * width;
    for (const [call, lane, end] of places) {
      context.fillStyle = color(call.ended === "error" ? "error" : call.ended === null ? "computed" : "sampled");
      context.fillRect(x(call.at), lane * each, Math.max(x(end) - x(call.at), 1.5), Math.max(each - 1, 1));
    }
  });
  return holder;
}
