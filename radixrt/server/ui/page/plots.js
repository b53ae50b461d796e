// Plots over the last minutes, from the samples of the server (radixrt/server/ui/samples.py) and the bounds.
import { $, axisTime, clockTime, color, FONT, hideTip, legend, make, prepare, short, showTip, time } from "./tools.js";

const HEIGHT = 132, LEFT = 50, RIGHT = 8, TOP = 10, BOTTOM = 20, LONGEST = 300, SHORTEST = 60, SMOOTH = 5, RECENT = 10;
const [AT, RUNNING, WAITING, PROMPT, CACHED, GENERATED, EVICTED, , , , , GAP50, GAP95] = Array(13).keys();

const rate = (column) => (rows, i) => {
  const from = rows[Math.max(i - SMOOTH, 0)], to = rows[i], seconds = to[AT] - from[AT];
  return seconds > 0 && to[column] >= from[column] ? (to[column] - from[column]) / seconds : null;
};
const gauge = (column) => (rows, i) => rows[i][column];
const difference = (one, other) => (rows, i) => {
  const a = rate(one)(rows, i), b = rate(other)(rows, i);
  return a === null || b === null ? null : a - b;
};

// Percentile of the seconds to the first token, over the requests that ended within some seconds before a row.
const firstToken = (share) => (rows, i, misses) => {
  const at = rows[i][AT], found = [];
  for (const miss of misses) if (miss.firstToken !== null && miss.endedAt <= at && miss.endedAt > at - RECENT) found.push(miss.firstToken);
  if (!found.length) return null;
  found.sort((a, b) => a - b);
  return found[Math.min(Math.floor(share * found.length), found.length - 1)];
};

export class Plots {
  constructor(requests) {
    this.requests = requests;
    this.rows = [];
    this.bounds = []; // lines of bounds, as they came
    this.plots = [
      { title: "Prompt tokens a second", form: short, series: [["reused", "cached", rate(CACHED)], ["computed", "computed", difference(PROMPT, CACHED)]] },
      { title: "Output tokens a second", form: short, series: [["sampled", "sampled", rate(GENERATED)]] },
      { title: "Requests", form: short, series: [["running", "sampled", gauge(RUNNING)], ["waiting", "computed", gauge(WAITING)]] },
      { title: "To the first token", form: time, log: true, series: [["median", "sampled", firstToken(0.5)], ["95th percentile", "computed", firstToken(0.95)]] },
      { title: "Between two tokens", form: time, log: true, series: [["median", "sampled", gauge(GAP50)], ["95th percentile", "computed", gauge(GAP95)]] },
      { title: "Evicted tokens a second", form: short, holder: "evicted", height: 96, series: [["evicted", "error", rate(EVICTED)]] },
    ];
    const hit = { title: "Hit rate against the optimum", form: (n) => `${Math.round(100 * n)} %`, most: 1, note: true, series: [
      ["nothing ever evicted", "forced", (line) => line.infinite / line.prompt],
      ["best cache of this size", "sampled", (line) => line.belady / line.prompt],
      ["this cache", "cached", (line) => line.hits / line.prompt],
    ] };
    this.hit = hit;
    for (const plot of [hit, ...this.plots]) this.mount(plot);
  }

  mount(plot) {
    plot.canvas = make("canvas", { role: "img", "aria-label": plot.title });
    plot.values = make("div", { class: "legend" });
    plot.about = make("p", { class: "quiet note" });
    const holder = make("div", {}, plot.canvas);
    if (plot.holder) $(plot.holder).append(make("h3", {}, plot.title), holder);
    else $("plots").append(make("section", {}, make("h2", {}, plot.title), holder, plot.values));
    if (plot.note) $("plots").after(plot.about);
    plot.canvas.addEventListener("pointermove", (event) => this.hover(plot, event));
    plot.canvas.addEventListener("pointerleave", hideTip);
    new ResizeObserver(() => this.drawOne(plot)).observe(holder);
  }

  add(rows) {
    const last = this.rows.at(-1)?.[AT] ?? 0; // with a snapshot, as after a restart, the rows come once more
    this.rows.push(...rows.filter((row) => row[AT] > last));
    if (this.rows.length > 900) this.rows.splice(0, this.rows.length - 900);
  }

  addBounds(line, at) {
    this.latest = line;
    if (!line.prompt) return;
    this.bounds.push({ ...line, at });
    if (this.bounds.length > 400) this.bounds.shift();
  }

  draw(now) {
    this.now = now;
    const first = Math.min(this.rows[0]?.[AT] ?? now, this.bounds[0]?.at ?? now);
    this.span = Math.min(Math.max(now - first, SHORTEST), LONGEST);
    for (const plot of [this.hit, ...this.plots]) this.drawOne(plot);
  }

  dataOf(plot) { // [times, [values of each series]]
    if (plot === this.hit) return [this.bounds.map((line) => line.at), plot.series.map(([, , of]) => this.bounds.map(of))];
    const ended = [...this.requests.misses.values()].filter((miss) => miss.ended !== null);
    const from = this.rows.findIndex((row) => row[AT] > this.now - this.span), rows = from < 0 ? [] : this.rows.slice(from);
    return [rows.map((row) => row[AT]), plot.series.map(([, , of]) => rows.map((_, i) => of(rows, i, ended)))];
  }

  drawOne(plot) {
    if (!plot.canvas.parentElement.clientWidth || !this.now) return;
    const height = plot.height ?? HEIGHT, [context, width] = prepare(plot.canvas, height), [times, values] = this.dataOf(plot);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    const known = values.flat().filter((v) => v !== null), bottom = height - BOTTOM, [ticks, share] = plot.log ? logScale(known) : linearScale(plot.most ?? niceTop(Math.max(1, ...known)));
    const x = (at) => LEFT + ((at - this.now + this.span) / this.span) * (width - LEFT - RIGHT), y = (v) => bottom - share(v) * (bottom - TOP);
    context.fillStyle = color("quiet");
    context.strokeStyle = color("line");
    context.textBaseline = "middle";
    for (const tick of known.length || plot.most ? ticks : ticks.slice(0, 1)) {
      context.beginPath();
      context.moveTo(LEFT, y(tick));
      context.lineTo(width - RIGHT, y(tick));
      context.stroke();
      context.textAlign = "right";
      context.fillText(plot.form === time ? axisTime(tick) : plot.form(tick), LEFT - 6, y(tick));
    }
    if (!known.length) {
      context.textAlign = "center";
      context.fillText("nothing yet", (LEFT + width - RIGHT) / 2, (TOP + bottom) / 2);
    }
    const step = this.span > 120 ? 60 : this.span > 80 ? 30 : 15;
    for (let back = 0; back < this.span - step / 3; back += step) {
      context.textAlign = back ? "center" : "right";
      context.fillText(back ? `−${time(back)}` : "now", back ? x(this.now - back) : width - RIGHT, height - 8);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT - RIGHT, height);
    context.clip();
    plot.series.forEach(([, name], i) => this.line(context, times, values[i], x, y, bottom, name));
    context.restore();
    this.tell(plot, values);
  }

  line(context, times, values, x, y, bottom, name) {
    context.strokeStyle = context.fillStyle = color(name);
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    let start = null;
    const end = (last) => {
      context.stroke();
      context.lineTo(x(last), bottom);
      context.lineTo(x(start), bottom);
      context.globalAlpha = 0.1;
      context.fill();
      context.globalAlpha = 1;
      start = null;
    };
    for (let i = 0; i < times.length; i++) {
      const broken = values[i] === null || (start !== null && times[i] - times[i - 1] > 8);
      if (broken && start !== null) end(times[i - 1]);
      if (values[i] === null) continue;
      if (start === null) {
        context.beginPath();
        context.moveTo(x(times[i]), y(values[i]));
        start = times[i];
      } else context.lineTo(x(times[i]), y(values[i]));
    }
    if (start !== null) end(times.at(-1));
    context.lineWidth = 1;
  }

  tell(plot, values) {
    legend(plot.values, plot.series.map(([words, name], i) => {
      const last = values[i].at(-1) ?? null;
      return [`${words} ${last === null ? "–" : plot.form(last)}`, name];
    }));
    if (!plot.note || !this.latest) return;
    const line = this.latest;
    plot.about.textContent = line.prompt
      ? `Hit rate against the optimum: over the ${line.requests} requests that ended in the last ${time(Math.min(this.now - line.since, line.seconds))}: Belady's optimum for a cache of this pool's size that knows the future, in granules of 64 tokens, requests one after another; and the bound of a cache from which nothing was ever evicted. Watched since ${clockTime(line.since)}.`
      : `Belady's optimum for a cache of this size, and the bound without eviction, follow once requests have ended. Watched since ${clockTime(line.since)}.`;
  }

  hover(plot, event) {
    const [times, values] = this.dataOf(plot), box = plot.canvas.getBoundingClientRect();
    const at = this.now - this.span + ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * this.span;
    let best = -1;
    times.forEach((time, i) => (best < 0 || Math.abs(time - at) < Math.abs(times[best] - at) ? (best = i) : 0));
    if (best < 0 || Math.abs(times[best] - at) > 10) return hideTip();
    const told = plot.series.map(([words], i) => make("div", {}, `${words} ${values[i][best] === null ? "–" : plot.form(values[i][best])}`));
    showTip(event, make("b", {}, clockTime(times[best])), ...told);
  }
}

// A scale is [values of its lines, function from a value to its share of the height].
function linearScale(most) {
  return [[0, most / 2, most], (value) => value / most];
}

// Whole powers of ten, because a single long gap between two tokens would press all others to the bottom.
export function logScale(values) {
  const above = values.filter((value) => value > 0), power = (value) => Math.log10(value);
  const low = above.length ? Math.floor(power(Math.min(...above)) + 1e-9) : -2;
  const high = Math.max(above.length ? Math.ceil(power(Math.max(...above)) - 1e-9) : 0, low + 1);
  const ticks = Array.from({ length: high - low + 1 }, (_, i) => Number(`1e${low + i}`));
  return [ticks, (value) => (value > 0 ? Math.max((power(value) - low) / (high - low), 0) : 0)];
}

function niceTop(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((m) => m * unit).find((top) => top >= value * 1.0001) ?? 10 * unit;
}

