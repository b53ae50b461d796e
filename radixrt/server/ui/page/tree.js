// A copy of the scheduler's radix tree for drawing: it applies the events of the feed (radixrt/messages/cache_events.py).

export const DONE = 0, NORMAL = 1, EXTENDED = 2, LEASED = 3; // kinds of retention levels
export const kindOf = (level) => (level < EXTENDED ? level : EXTENDED + (level % 2)); // levels above are those of older programs

// The node of an event "insert"; a root has no tokens, and the name of its namespace.
class Node {
  constructor(parent, [id, , tokens, , created, last, hits, priority, retention, locks, state]) {
    Object.assign(this, { id, parent, tokens, created, last, hits, priority, retention, locks, state });
    this.kids = [];
    this.below = tokens; // tokens in it and below it
    this.name = "";
    this.rank = this.key = this.open = 0; // see rankEviction
    this.passed = false;
  }

  get end() {
    let tokens = 0;
    for (let node = this; node; node = node.parent) tokens += node.tokens;
    return tokens;
  }
}

const bare = (id, locks = 0) => [id, 0, 0, "", 0, 0, 0, 0, NORMAL, locks, false];

export class Tree {
  constructor() {
    this.header = {};
    this.clock = 0;
    this.ticks = []; // [tick, seconds], ascending
    this.clear();
  }

  clear() {
    this.nodes = new Map(); // by number, without roots
    this.top = new Node(null, bare(0)); // its children are the roots of the namespaces
    this.roots = new Map();
  }

  get size() {
    return this.nodes.size;
  }

  load(line) {
    this.clear();
    this.header = line.header;
    this.ticks = line.ticks;
    this.apply(line);
  }

  apply(line) {
    for (const [kind, ...values] of line.events) this[kind](this.nodes.get(values[0]) ?? this.roots.get(values[0]), values);
    this.clock = line.clock;
    const last = this.ticks.at(-1);
    if (line.at && (!last || line.at - last[1] >= 1)) this.ticks.push([line.clock, line.at]);
    if (this.ticks.length > 3600) this.ticks.splice(0, 1800);
  }

  // --- events, by their names: the node that is meant, and the event's fields ---

  root(_, [id, seed, locks]) {
    const root = new Node(this.top, bare(id, locks));
    root.name = [...atob(seed)].map((byte) => byte.charCodeAt(0).toString(16).padStart(2, "0")).join("");
    this.top.kids.push(root);
    this.roots.set(id, root);
  }

  insert(_, fields) {
    const parent = this.nodes.get(fields[1]) ?? this.roots.get(fields[1]), node = new Node(parent, fields);
    parent.kids.push(node);
    this.nodes.set(node.id, node);
    for (let above = parent; above; above = above.parent) above.below += node.tokens;
  }

  split(node, [, prefixId, tokens]) {
    const above = node.parent;
    const prefix = new Node(above, [prefixId, 0, tokens, "", node.created, node.last, node.hits, node.priority, NORMAL, node.locks, false]);
    prefix.below = node.below;
    prefix.kids = [node];
    above.kids[above.kids.indexOf(node)] = prefix; // where it was, so that the picture stays
    node.parent = prefix;
    node.tokens -= tokens;
    node.below -= tokens;
    this.nodes.set(prefixId, prefix);
  }

  evict(node) {
    const above = node.parent;
    above.kids.splice(above.kids.indexOf(node), 1);
    for (let each = above; each; each = each.parent) each.below -= node.tokens;
    node.parent = null;
    this.nodes.delete(node.id);
    this.roots.delete(node.id);
  }

  use(node, [, clock, hits, priority]) {
    for (; node.tokens; node = node.parent) {
      node.last = clock;
      node.hits += hits;
      if (priority !== null) node.priority = Math.max(node.priority, priority);
      if (node.retention === DONE) node.retention = NORMAL;
    }
  }

  lock(node, [, change]) {
    for (; node !== this.top; node = node.parent) node.locks += change;
  }

  retain(node, [, retention]) {
    node.retention = retention;
  }

  state(node, [, state]) {
    node.state = state;
  }

  // --- what is read from it ---

  secondsAt(tick) { // time of a tick; null if it was before the page's first
    const ticks = this.ticks;
    if (!ticks.length || tick < ticks[0][0]) return null;
    let low = 0, high = ticks.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ticks[middle][0] < tick) low = middle + 1;
      else high = middle;
    }
    return ticks[low][1];
  }

  // The sort key of radixrt/mem_cache/radix_cache.py as one number that sorts the same.
  evictionKey(node) {
    const policy = this.header.policy, age = policy === "fifo" ? node.created : node.last; // ticks, below 2 ** 32
    const first = policy === "priority" ? Math.min(Math.max(node.priority + 64, 0), 127) * 1024 : 0;
    const level = policy === "lfu" ? node.retention * 1024 + Math.min(node.hits, 1023) : first + node.retention; // below 2 ** 20
    return (node.state * 2 ** 20 + level) * 2 ** 32 + age;
  }

  // Leaves in the order in which they would be evicted, the first `most` of them.
  nextEvicted(most) {
    const found = [];
    for (const node of this.nodes.values()) {
      if (node.locks || node.kids.length) continue;
      const key = this.evictionKey(node);
      if (found.length === most && key >= found.at(-1).key) continue;
      let at = found.length;
      while (at && key < found[at - 1].key) at--;
      found.splice(at, 0, { node, key });
      if (found.length > most) found.pop();
    }
    return found.map((each) => each.node);
  }

  // Set `rank` of every node to the share of evictable tokens that are evicted before it, if no more is used.
  rankEviction() {
    const order = [];
    let total = 0;
    for (const node of this.nodes.values()) {
      node.rank = 1;
      node.open = node.kids.length; // children that are still there
      node.passed = false;
      if (node.locks) continue;
      node.key = this.evictionKey(node);
      total += node.tokens;
      order.push(node);
    }
    order.sort((a, b) => a.key - b.key);
    let gone = 0;
    for (let node of order) {
      node.passed = true;
      // A node goes in its turn, or with its last child if that comes later.
      while (node.tokens && !node.locks && node.passed && !node.open) {
        node.rank = gone / (total || 1);
        gone += node.tokens;
        node = node.parent;
        node.open--;
      }
    }
  }
}
