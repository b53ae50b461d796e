// The replicas behind a router: a table above the tabs, in which a click shows the tree of a replica.
import { $, count, fillStack, make, percent, short, time } from "./tools.js";

const MARKS = { serving: "on", failed: "", starting: "wait", restarting: "wait", draining: "wait", drained: "wait", fenced: "" };

export class Fleet {
  constructor(choose) {
    this.choose = choose; // called with the number of the replica to show
    this.shown = null;
    this.size = 0; // replicas; 0 for an engine without a router
    this.seen = new Map(); // replica -> [time in seconds, output tokens]
  }

  // held: number of requests that wait in the router, those that are bound to no replica yet included.
  take(rows, now, held) {
    this.size = rows.length;
    $("fleet").hidden = !rows.length;
    const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
    $("fleet-about").textContent = `${rows.filter((row) => row.state === "serving").length} of ${rows.length} serving, ${count(total("open"))} requests open, ${count(Math.max(held, total("queued")))} in the router; the tree below is that of replica ${this.shown}`;
    $("replicas").tBodies[0].replaceChildren(...rows.map((row) => this.row(row, now)));
    this.seen = new Map(rows.map((row) => [row.replica, [now, row.generated_tokens]]));
  }

  row(row, now) {
    const [then, tokens] = this.seen.get(row.replica) ?? [now, row.generated_tokens];
    const rate = now > then ? Math.max(row.generated_tokens - tokens, 0) / (now - then) : 0;
    const held = row.slots_total - row.slots_free - row.slots_evictable, bar = make("div", { class: "stack" });
    fillStack(bar, [[held, "sampled"], [row.slots_evictable, "cached"], [row.slots_free, "queued"]], row.slots_total);
    const cell = (words, name = "number") => make("td", { class: name }, words);
    const shows = row.replica === this.shown;
    return make("tr", { class: shows ? "shown" : "", title: row.reason || `show the tree of replica ${row.replica}`, onclick: () => this.choose(row.replica) },
      cell(make("button", { type: "button", "aria-pressed": shows }, row.role === "both" ? `replica ${row.replica}` : `replica ${row.replica}, ${row.role}`), ""),
      cell(make("span", {}, make("span", { class: `dot ${MARKS[row.state] ?? ""}` }), row.fences && row.state === "serving" ? `serving, fenced ${row.fences} times before` : row.state), ""),
      cell(count(row.open)), cell(count(row.queued)), cell(time(row.predicted_wait_s)), cell(short(rate)),
      cell(row.prompt_tokens ? percent(row.cached_tokens, row.prompt_tokens) : "–"), cell(bar, "bar"));
  }
}
