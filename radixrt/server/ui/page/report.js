// A report file of the frontend language (`state.save_report`), opened in the browser: it is sent nowhere. Only its data
// are read, never its script or markup, and they enter the page through textContent, text nodes and JPEG files alone.
import { $, count, make, percent, plural, stack, time } from "./tools.js";
import { lanes, Rows } from "./requests.js";

const MOST_BYTES = 64 << 20, MOST_CALLS = 20_000;
const DATA = /<script type="application\/json" id="run">([^<]*)<\/script>/; // the language writes "<" in it as an escape

const LABEL = /(\[image \d+ x \d+ [0-9a-f]{32}\])/, JPEG = /^data:image\/jpeg;base64,[A-Za-z0-9+/]{1,400000}={0,2}$/;

const number = (value) => (Number.isFinite(value) ? Math.max(value, 0) : 0);
const words = (value) => (typeof value === "string" ? value : "");

// The run in the text of a report, with every field that is shown in the type that it should have; throws an Error with
// words for the user.
export function readReport(text) {
  const found = DATA.exec(text);
  if (!found) throw new Error("this is no report of a run; state.save_report(\"run.html\") writes one");
  let run;
  try {
    run = JSON.parse(found[1]);
  } catch {
    throw new Error("the report's data are damaged; write it again with state.save_report");
  }
  if (!Array.isArray(run?.calls) || !Array.isArray(run.branches)) throw new Error("the report has no calls or branches; it is of another version of radixrt");
  if (run.calls.length > MOST_CALLS) throw new Error(`the report has ${count(run.calls.length)} calls; at most ${count(MOST_CALLS)} are shown here: open the file by itself`);
  const keys = new Map(run.branches.map((branch) => [branch?.id, words(branch?.key)])), byId = new Map();
  const calls = run.calls.filter((call) => call && typeof call === "object").map((call, place) => {
    const start = number(call.start ?? call.queued), before = byId.get(call.base) ?? "";
    const one = {
      place, id: call.id, branch: keys.get(call.branch) || words(call.branch), name: words(call.name) || words(call.kind), prompt: number(call.prompt), cached: Math.min(number(call.cached), number(call.prompt)),
      out: number(call.out), forced: Math.min(number(call.forced), number(call.out)), at: start, endedAt: Math.max(number(call.end), start), text: words(call.text), shared: before.slice(0, number(call.chars)), own: words(call.prompt_text),
      ended: words(call.error) ? "error" : call.end === null ? null : "stop", error: words(call.error), waited: Math.max(number(call.admitted) - start, 0),
    };
    byId.set(call.id, one.shared + one.own);
    return one;
  });
  return { name: words(run.name), backend: words(run.backend), program: words(run.program), error: words(run.error), at: number(run.unix_time), wall: number(run.wall_s), running: run.running === true, branches: run.branches.length, calls, pictures: new Map(Object.entries(run.pictures ?? {}).filter(([, url]) => JPEG.test(url))) };
}

export class Report {
  constructor() {
    this.rows = new Rows($("report-calls"));
    this.run = null;
    $("report-file").addEventListener("change", (event) => this.open(event.target.files[0]));
    $("report-calls").tBodies[0].addEventListener("click", (event) => this.pick(this.rows.keyOf(event.target)));
    const tab = document.querySelector('.tab[data-tab="programs"]');
    tab.addEventListener("dragover", (event) => event.preventDefault());
    tab.addEventListener("drop", (event) => {
      event.preventDefault();
      this.open(event.dataTransfer.files[0]);
    });
  }

  async open(file) {
    if (!file) return;
    $("report-failure").hidden = true;
    try {
      if (file.size > MOST_BYTES) throw new Error(`the file has ${count(file.size >> 20)} MiB; at most ${MOST_BYTES >> 20} are read`);
      this.show(readReport(await file.text()));
    } catch (error) {
      $("report").hidden = true;
      $("report-failure").hidden = false;
      $("report-failure").textContent = `${file.name}: ${error.message}`;
    }
  }

  show(run) {
    this.run = run;
    const { calls } = run, sum = (of) => calls.reduce((all, call) => all + of(call), 0);
    const prompt = sum((call) => call.prompt), cached = sum((call) => call.cached), out = sum((call) => call.out), failed = calls.filter((call) => call.error).length;
    $("report").hidden = false;
    $("report-about").textContent = [run.name, run.backend, run.program, run.at ? new Date(1000 * run.at).toLocaleString("en-GB") : ""].filter(Boolean).join(" · ");
    $("report-totals").textContent = `${plural(calls.length, "call")} in ${plural(run.branches, "branch")}, ${time(run.wall)}${run.running ? ", still running when it was saved" : ""}: of ${count(prompt)} prompt tokens ${percent(cached, prompt)} reused and ${count(prompt - cached)} computed, ${count(out)} generated${failed ? `, ${count(failed)} failed` : ""}`;
    $("report-error").hidden = !run.error;
    $("report-error").textContent = run.error;
    $("report-lanes").replaceChildren(lanes(calls, 0, Math.max(run.wall, ...calls.map((call) => call.endedAt)), 90));
    $("report-text").replaceChildren();
    this.rows.show(calls, (call) => [call.place, call.error ? "bad" : "", [
      ["clipped", call.branch], ["clipped", call.name], ["number", count(call.prompt)], ["number", percent(call.cached, call.prompt)], ["number", count(call.out)],
      ["bar", [call.cached, call.prompt, call.out, call.forced].join(), () => stack([[call.cached, "cached"], [call.prompt - call.cached, "computed"], [call.out - call.forced, "sampled"], [call.forced, "forced"]])],
      ["number", time(call.at)], ["number", call.ended === null ? "running" : time(call.endedAt - call.at)], ["clipped why", (call.error || call.text).slice(0, 300)],
    ]]);
  }

  pick(place) { // prompt and answer of a call; grey is what an earlier call's prompt began with too
    const call = this.run?.calls[place];
    if (!call) return;
    $("report-text").replaceChildren(
      make("p", { class: "quiet" }, `${call.branch} / ${call.name}: prompt${call.shared ? ", grey where an earlier call's begins the same" : ""}${call.waited ? `; ${time(call.waited)} in the queue` : ""}`),
      make("div", { class: "said user" }, ...this.prompt(call)),
      make("div", { class: "said" }, call.error || call.text),
    );
  }

  * prompt({ shared, own }) { // the nodes of a prompt, with pictures in place of their labels
    let at = 0;
    for (const piece of (shared + own).split(LABEL)) {
      const grey = Math.min(Math.max(shared.length - at, 0), piece.length), url = this.run.pictures.get(piece);
      at += piece.length;
      if (url) yield make("img", { src: url, alt: piece, title: piece });
      else yield* [make("span", { class: "same" }, piece.slice(0, grey)), piece.slice(grey)];
    }
  }
}
