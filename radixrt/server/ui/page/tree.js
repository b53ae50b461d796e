// A copy of the scheduler's radix tree, kept by the events of the feed (radixrt/server/ui/lines.py).

export const DONE = 0, NORMAL = 1, EXTENDED = 2, LEASED = 3; // kinds of retention levels
export const kindOf = (level) => (level < EXTENDED ? level : EXTENDED + (level % 2)); // levels above are those of older programs

class Node {
  constructor(id, parent, tokens) {
    this.id = id;
    this.parent = parent;
    this.kids = [];
    this.tokens = tokens;
    this.below = tokens; // tokens in it and below it
    this.created = this.last = this.hits = this.priority = this.locks = this.state = 0;
    this.retention = NORMAL;
    this.name = "";
    this.rank = this.key = this.open = 0; // see rankEviction
    this.passed = false;
  }

  get end() {
    let tokens = 0;
    for (let node = this; node; node = node.parent) tokens += node.tokens;
    return tokens;
  }

  get root() {
    let node = this;
    while (node.parent && node.parent.parent) node = node.parent;
    return node;
  }
}

export class Tree {
  constructor() {
    this.header = {};
    this.clock = 0;
    this.ticks = []; // [tick, seconds], ascending
    this.version = 0; // grows with every change
    this.clear();
  }

  clear() {
    this.nodes = new Map();
    this.top = new Node(0, null, 0); // its children are the roots of the namespaces
    this.roots = new Map();
  }

  get size() {
    return this.nodes.size;
  }

  load(line) {
    this.clear();
    this.header = line.header;
    this.clock = line.clock;
    this.ticks = line.ticks;
    for (const [id, name, locks] of line.roots) this.open(id, name, locks);
    const columns = line.nodes;
    for (let at = 0; at < columns.length; at += 10) this.insert(columns, at, false);
    const order = [...this.nodes.values()]; // parents first
    for (let i = order.length - 1; i >= 0; i--) order[i].parent.below += order[i].below;
    for (const root of this.roots.values()) this.top.below += root.below;
    this.version++;
  }

  apply(line) {
    for (const event of line.events) this.take(event);
    this.clock = line.clock;
    const last = this.ticks.at(-1);
    if (!last || line.at - last[1] >= 1) this.ticks.push([line.clock, line.at]);
    if (this.ticks.length > 3600) this.ticks.splice(0, 1800);
    this.version++;
  }

  take(event) {
    const node = this.nodes.get(event[1]) ?? this.roots.get(event[1]);
    switch (event[0]) {
      case "r": return this.open(event[1], event[2], event[3]);
      case "i": return this.insert(event, 1, true);
      case "s": return this.split(node, event[2], event[3]);
      case "e": return this.evict(node);
      case "u": return this.use(node, event[2], event[3], event[4]);
      case "l": return this.lock(node, event[2]);
      case "t": return void (node.retention = event[2]);
      case "h": return void (node.state = event[2]);
      case "c": return this.clear();
    }
  }

  open(id, name, locks) {
    const root = new Node(id, this.top, 0);
    root.name = name;
    root.locks = locks;
    this.top.kids.push(root);
    this.roots.set(id, root);
  }

  insert(columns, at, counts) {
    const parent = this.nodes.get(columns[at + 1]) ?? this.roots.get(columns[at + 1]);
    const node = new Node(columns[at], parent, columns[at + 2]);
    [node.created, node.last, node.hits, node.priority] = [columns[at + 3], columns[at + 4], columns[at + 5], columns[at + 6]];
    [node.retention, node.locks, node.state] = [columns[at + 7], columns[at + 8], columns[at + 9]];
    parent.kids.push(node);
    this.nodes.set(node.id, node);
    if (counts) for (let above = parent; above; above = above.parent) above.below += node.tokens;
  }

  split(node, prefixId, tokens) {
    const above = node.parent, prefix = new Node(prefixId, above, tokens);
    prefix.below = node.below;
    for (const field of ["created", "last", "hits", "priority", "locks"]) prefix[field] = node[field];
    above.kids[above.kids.indexOf(node)] = prefix; // where it was, so that the picture stays
    prefix.kids = [node];
    node.parent = prefix;
    node.tokens -= tokens;
    node.below -= tokens;
    this.nodes.set(prefixId, prefix);
  }

  evict(node) {
    const above = node.parent;
    if (!above) return;
    above.kids.splice(above.kids.indexOf(node), 1);
    for (let each = above; each; each = each.parent) each.below -= node.below;
    node.parent = null;
    this.nodes.delete(node.id);
    this.roots.delete(node.id);
  }

  use(node, clock, hits, priority) {
    for (; node && node.tokens; node = node.parent) {
      node.last = clock;
      node.hits += hits;
      if (priority !== null) node.priority = Math.max(node.priority, priority);
      if (node.retention === DONE) node.retention = NORMAL;
    }
  }

  lock(node, change) {
    for (; node && node !== this.top; node = node.parent) node.locks += change;
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

  // As in radixrt/mem_cache/cache_replica.py, as one number that sorts the same.
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
