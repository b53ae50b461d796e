// The tree as an icicle on a canvas: a row for each depth, a node as wide as the tokens in it and below it. What is
// narrower than a pixel is drawn together, so a frame costs what is visible, not what there is.
import { $, call, color, count, FONT, hideTip, make, mix, plural, prepare, short, showTip, TIERS, time } from "./tools.js";
import { DONE, EXTENDED, kindOf, LEASED } from "./tree.js";

const ROW = 27, GAP = 1, THIN = 1.4, MAX_ROWS = 22, MIN_ROWS = 7;
const AGES = [1, 10, 60, 600, 3600];
const KEPT_S = 3; // after so many seconds a node's tiers are asked for again

export const MODES = [["age", "by last use"], ["hits", "by hits"], ["holders", "by who holds it"], ["eviction", "by eviction order"]];

export class Icicle {
  constructor(tree, requests) {
    this.tree = tree;
    this.requests = requests; // rows of the scheduler's requests, and holds of programs, as in requests.js
    this.canvas = $("icicle").firstElementChild;
    this.focus = null; // node that fills the width; null for all
    this.view = [0, 1]; // part of the focus that is shown
    this.mode = "age";
    this.found = null; // set of nodes that a search has found, with the nodes above them
    this.rects = [];
    this.under = null;
    this.texts = new Map();
    this.showsText = false;
    this.kept = new Map(); // of nodes: when the server was asked, and the tokens of the prefix that each tier has
    this.showsTiers = false;
    this.now = 0;
    this.due = false;
    this.ranked = 0;
    this.listen();
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => (drag = { x: event.clientX, view: [...this.view], moved: false }));
    canvas.addEventListener("pointermove", (event) => {
      if (drag && event.buttons && Math.abs(event.clientX - drag.x) > 3) {
        const [from, to] = drag.view, move = ((drag.x - event.clientX) / canvas.clientWidth) * (to - from);
        const kept = Math.min(Math.max(move, -from), 1 - to);
        drag.moved = true;
        this.show([from + kept, to + kept]);
        return hideTip();
      }
      this.hover(event);
    });
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      this.under = null;
      this.redraw();
    });
    canvas.addEventListener("click", (event) => {
      if (!drag?.moved) {
        const hit = this.at(event);
        if (hit) this.zoom(hit.node);
      }
      drag = null;
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const [from, to] = this.view, at = from + (event.offsetX / canvas.clientWidth) * (to - from);
      const span = Math.min(1, (to - from) * 1.0015 ** event.deltaY), start = Math.min(Math.max(at - ((at - from) * span) / (to - from), 0), 1 - span);
      this.show([start, start + span]);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => event.key === "Escape" && this.back());
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
  }

  get alone() { // the default namespace, if there is no other: it gets no row
    const roots = this.tree.top.kids;
    return roots.length === 1 && !roots[0].name ? roots[0] : null;
  }

  show(view) {
    this.view = view;
    this.redraw();
  }

  back() {
    if (this.view[0] > 0 || this.view[1] < 1) return this.show([0, 1]);
    this.zoom(this.focus?.parent ?? null);
  }

  zoom(node) {
    this.focus = node === this.tree.top || node === this.alone ? null : node;
    this.show([0, 1]);
  }

  redraw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  // --- drawing ---

  draw() {
    if (!this.canvas.parentElement.clientWidth) return; // its tab is hidden
    const started = performance.now();
    if (this.focus && !this.focus.parent) this.focus = null; // evicted
    if (this.mode === "eviction" && started - this.ranked > (this.tree.size > 20000 ? 5000 : 1000)) {
      this.tree.rankEviction();
      this.ranked = performance.now();
    }
    const top = this.focus ?? this.alone ?? this.tree.top;
    this.hidden = this.focus ? null : top;
    this.rects = [];
    this.rows = 0;
    this.width = this.canvas.parentElement.clientWidth;
    const [from, to] = this.view, scale = this.width / ((to - from) * (top.below || 1));
    this.place(top, -from * top.below * scale, scale, 0);
    const height = Math.min(Math.max(this.rows + 1, MIN_ROWS), MAX_ROWS) * ROW;
    const [context, width] = prepare(this.canvas, height);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    for (const rect of this.rects) this.paint(context, rect);
    if (!this.tree.size) {
      context.fillStyle = color("quiet");
      context.fillText(this.emptiness(), 12, height / 2);
    }
    this.crumbs();
    this.drawn = performance.now() - started;
    performance.mark("icicle", { detail: { ms: this.drawn, rects: this.rects.length, nodes: this.tree.size } });
  }

  emptiness() { // words for a tree without nodes
    if (this.tree.header.enabled === undefined) return "The tree is being read.";
    return this.tree.header.enabled ? "Nothing is cached yet. Send a request, or try the playground." : "The prefix cache is off (--no-prefix-cache).";
  }

  // Collect the rectangles of a node and of what is visible below it.
  place(node, x, scale, depth) {
    if (depth >= MAX_ROWS) return;
    const own = node !== this.hidden;
    if (own) {
      this.rects.push({ node, x, width: node.below * scale, depth, many: 0 });
      this.rows = Math.max(this.rows, depth);
    }
    let at = x, thinFrom = 0, thinCount = 0, thinOne = null;
    const flush = () => {
      if (thinCount) this.rects.push({ node: thinOne, x: thinFrom, width: at - thinFrom, depth: depth + own, many: thinCount });
      if (thinCount) this.rows = Math.max(this.rows, depth + own);
      thinCount = 0;
    };
    for (const kid of node.kids) {
      const width = kid.below * scale;
      if (at > this.width) break;
      if (at + width >= 0) {
        if (width < THIN) {
          if (!thinCount) [thinFrom, thinOne] = [at, kid];
          else if (kid.last > thinOne.last) thinOne = kid; // the group shows its latest
          thinCount++;
        } else {
          flush();
          this.place(kid, at, scale, depth + own);
        }
      }
      at += width;
    }
    flush();
  }

  paint(context, { node, x, width, depth, many }) {
    const left = Math.max(x, 0), right = Math.min(x + width, this.width), y = depth * ROW;
    if (right - left < 0.3) return;
    const shown = Math.max(right - left - GAP, Math.min(1, right - left));
    context.globalAlpha = this.found && !this.found.has(node) ? 0.22 : 1;
    context.fillStyle = this.fill(node);
    context.fillRect(left, y + GAP, shown, ROW - 2 * GAP);
    if (many > 1 && shown > 3) { // hatched: many nodes in one
      context.fillStyle = color("card");
      context.globalAlpha *= 0.35;
      for (let at = left; at < left + shown; at += 4) context.fillRect(at, y + GAP, 1, ROW - 2 * GAP);
    } else if (node.locks && shown > 2 && this.mode !== "holders") {
      context.fillStyle = color("sampled");
      context.fillRect(left, y + ROW - GAP - 3, shown, 3);
    }
    if (this.under === node && !many) {
      context.globalAlpha = 1;
      context.strokeStyle = color("ink");
      context.strokeRect(left + 0.5, y + GAP + 0.5, shown - 1, ROW - 2 * GAP - 1);
    }
    if (shown > 34 && !many) this.label(context, node, left, y, shown);
    context.globalAlpha = 1;
  }

  label(context, node, left, y, width) {
    let text = node.tokens ? short(node.tokens) : node.name ? `cache_salt ${node.name}` : "default";
    if (width > 84 && node.hits) text += ` · ${plural(node.hits, "hit")}`;
    if (width > 150 && node.locks) text += ` · held by ${node.locks}`;
    const room = Math.floor((width - 10) / 6.1);
    if (text.length > room) text = text.slice(0, Math.max(room, 0));
    context.fillStyle = this.inkOn(node);
    context.fillText(text, left + 5, y + ROW / 2 + 0.5);
  }

  fill(node) {
    if (!node.tokens) return color("hover");
    if (this.mode === "hits") return mix("cold", "cached", Math.log2(1 + node.hits) / 8);
    if (this.mode === "eviction") return node.locks ? color("queued") : mix("error", "cold", Math.sqrt(node.rank));
    if (this.mode === "holders") {
      if (node.locks) return color("sampled");
      return color({ [LEASED]: "computed", [EXTENDED]: "computed", [DONE]: "error" }[kindOf(node.retention)] ?? "cold");
    }
    return mix("cached", "cold", this.age(node));
  }

  inkOn(node) {
    const strong = { age: this.age(node) < 0.45, hits: node.hits > 8, holders: node.locks > 0 || node.retention !== 1, eviction: !node.locks && node.rank < 0.15 }[this.mode];
    return node.tokens && strong ? color("card") : color("ink");
  }

  age(node) { // 0 for now, 1 for an hour or more
    const at = this.tree.secondsAt(node.last);
    if (at === null) return 0.9;
    return Math.log2(1 + Math.max(this.now - at, 0)) / 12;
  }

  crumbs() {
    const path = [];
    for (let node = this.focus; node && node !== this.tree.top; node = node.parent) path.unshift(node);
    const key = path.map((node) => node.id).join();
    if (key === this.crumbKey) return;
    this.crumbKey = key;
    const crumb = (words, node) => make("button", { type: "button", onclick: () => this.zoom(node) }, words);
    $("crumbs").replaceChildren(...(path.length ? [crumb("all", null), ...path.map((node) => crumb(node.tokens ? short(node.tokens) : node.name || "default", node))] : []));
  }

  // --- the pointer ---

  at(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, depth = Math.floor((event.clientY - box.top) / ROW);
    return this.rects.find((rect) => rect.depth === depth && x >= rect.x && x < rect.x + rect.width);
  }

  hover(event) {
    const hit = this.at(event), node = hit && !hit.many ? hit.node : null;
    if (node !== this.under) {
      this.under = node;
      this.redraw();
    }
    if (!hit) return hideTip();
    if (hit.many) return showTip(event, make("b", {}, plural(hit.many, "node")), make("div", { class: "quiet" }, "narrower than a pixel: zoom in on the node above"));
    showTip(event, ...this.describe(node));
    if (this.showsTiers && node.tokens) this.loadKept(node, event);
    if (this.showsText && node.tokens) this.loadText(node, event);
  }

  describe(node) {
    if (!node.tokens) return [make("b", {}, node.name ? `cache_salt ${node.name}` : "default namespace"), make("div", {}, `${count(node.below)} tokens`)];
    const ago = (tick) => {
      const at = this.tree.secondsAt(tick);
      return at === null ? `before the server counted (${plural(this.tree.clock - tick, "use")} ago)` : `${time(Math.max(this.now - at, 0))} ago`;
    };
    const retention = { [DONE]: "its program is done: evicted before others", [EXTENDED]: "kept: its program goes on from here", [LEASED]: "kept: prefix of a fork" }[kindOf(node.retention)];
    const lines = [
      `prefix of ${count(node.end)} tokens, ${count(node.below)} in it and below it`,
      `${plural(node.hits, "hit")}, last used ${ago(node.last)}, computed ${ago(node.created)}`,
      node.locks ? `held by ${plural(node.locks, "request")}, not evicted meanwhile` : node.kids.length ? "evicted after what is below it" : "may be evicted",
    ];
    if (retention) lines.push(retention);
    if (node.state) lines.push("has a state of the recurrent layers");
    for (const [tier, tokens] of Object.entries(this.kept.get(node.id)?.kept ?? {})) {
      lines.push(`${TIERS[tier] ?? tier}: ${tokens === node.end ? "all" : tokens ? `the first ${count(tokens)}` : "none"} of the prefix`);
    }
    const holders = [...this.requests.holdersOf(node)];
    const out = [make("b", {}, `${plural(node.tokens, "token")} · node ${node.id}`), ...lines.map((line) => make("div", {}, line))];
    if (holders.length) out.push(make("div", { class: "out" }, `${holders.slice(0, 5).join("\n")}${holders.length > 5 ? `\nand ${holders.length - 5} more` : ""}`));
    const text = this.texts.get(node.id);
    if (text !== undefined) out.push(make("pre", {}, text));
    return out;
  }

  get ofReplica() {
    return this.replica === null ? "" : `&replica=${this.replica}`;
  }

  loadKept(node, event) {
    if (this.now - (this.kept.get(node.id)?.at ?? -Infinity) < KEPT_S) return;
    clearTimeout(this.askingKept);
    this.askingKept = setTimeout(async () => {
      let kept = {};
      try {
        kept = (await (await call(`/ui/node?node=${node.id}${this.ofReplica}`)).json()).kept;
      } catch {} // the node is gone
      if (this.kept.size > 500) this.kept.clear();
      this.kept.set(node.id, { at: this.now, kept });
      if (this.under === node) showTip(event, ...this.describe(node));
    }, 120);
  }

  loadText(node, event) {
    if (this.texts.has(node.id)) return;
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      let text;
      try {
        text = (await (await call(`/ui/text?node=${node.id}${this.ofReplica}`)).json()).text;
      } catch (error) {
        text = `(${error.message})`;
      }
      if (this.texts.size > 500) this.texts.clear();
      this.texts.set(node.id, text.length > 700 ? `${text.slice(0, 700)}…` : text);
      if (this.under === node) showTip(event, ...this.describe(node));
    }, 120);
  }

  // --- search ---

  search(words) {
    const nodes = words ? [...this.matches(words.trim())] : null;
    this.found = nodes && new Set();
    for (const node of nodes ?? []) for (let each = node; each; each = each.parent) this.found.add(each);
    this.redraw();
    return nodes?.length ?? 0;
  }

  *matches(words) {
    const compared = words.match(/^(hits|tokens|prefix|locks)\s*([<>=])\s*(\d+)$/);
    if (compared) {
      const [, field, sign, number] = compared, of = field === "prefix" ? "end" : field;
      for (const node of this.tree.nodes.values()) {
        const value = node[of];
        if (sign === ">" ? value > +number : sign === "<" ? value < +number : value === +number) yield node;
      }
      return;
    }
    if (/^\d+$/.test(words) && this.tree.nodes.has(+words)) yield this.tree.nodes.get(+words);
    for (const [id] of this.requests.nodesOf(words.toLowerCase())) {
      const node = this.tree.nodes.get(id);
      if (node) yield node;
    }
    for (const root of this.tree.roots.values()) {
      if (root.name && root.name.includes(words)) yield* root.kids;
    }
  }
}

export const SCALES = {
  age: () => AGES.map((seconds, i) => [i ? `${time(seconds)} ago` : "just used", mix("cached", "cold", Math.log2(1 + seconds) / 12)]),
  hits: () => [0, 1, 7, 31, 255].map((hits) => [plural(hits, "hit"), mix("cold", "cached", Math.log2(1 + hits) / 8)]),
  holders: () => [["a request", color("sampled")], ["a program's next call", color("computed")], ["nobody", color("cold")], ["nobody, its program is done", color("error")]],
  eviction: () => [...[0, 0.1, 0.5, 1].map((rank) => [rank ? `${100 * rank} % before it` : "first", mix("error", "cold", Math.sqrt(rank))]), ["held", color("queued")]],
};
