// The playground: chat, completion with coloured log-probabilities, and JSON by a schema, with the tokens that the
// grammar left no choice about.
import { content, Pictures, thumbnail } from "./pictures.js";
import { $, call, count, legend, lines, make, percent, plural, time } from "./tools.js";

const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, born: { type: "integer" }, field: { enum: ["physics", "chemistry", "mathematics"] } },
  required: ["name", "born", "field"],
  additionalProperties: false,
};
const PROMPTS = { chat: "Why is the sky blue? Answer in two sentences.", completion: "The capital of France is", json: "Who was Marie Curie?" };
const TOP = 5;

export class Playground {
  constructor() {
    this.mode = "chat";
    this.messages = [];
    this.abort = null;
    this.pictures = new Pictures(document.querySelector(".tab[data-tab=playground]"), () => this.mode !== "completion");
    $("schema").value = JSON.stringify(SCHEMA, null, 2);
    for (const button of document.querySelectorAll("[data-mode]")) button.addEventListener("click", () => this.choose(button.dataset.mode));
    $("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    $("prompt").addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && $("ask").requestSubmit());
    $("stop").addEventListener("click", () => this.abort?.abort());
    $("clear").addEventListener("click", () => {
      this.pictures.take();
      this.clear();
    });
    this.choose("chat");
  }

  start(hello) {
    this.model = hello.model;
    $("play-about").textContent = hello.generates ? "requests of this page are requests like all others; watch them in the tree" : "this model generates nothing";
    $("send").disabled = !hello.generates;
    this.pictures.start(hello.images);
    if (!hello.chats && this.mode === "chat") this.choose("completion");
  }

  choose(mode) {
    this.mode = mode;
    for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === mode);
    for (const node of document.querySelectorAll("[data-for]")) node.hidden = !node.dataset.for.includes(mode);
    $("prompt").value = PROMPTS[mode];
    this.clear();
  }

  clear() {
    this.messages = [];
    $("dialog").replaceChildren();
    $("alternatives").replaceChildren();
    $("shades").replaceChildren();
  }

  body() {
    const seed = $("seed").value, shared = { model: this.model, stream: true, stream_options: { include_usage: true }, temperature: +$("temperature").value, max_tokens: +$("max-tokens").value };
    if (seed !== "") shared.seed = +seed;
    if (this.mode === "completion") return ["/v1/completions", { ...shared, prompt: $("prompt").value, logprobs: TOP }];
    const system = $("system").value.trim(), first = system ? [{ role: "system", content: system }] : [];
    if (this.mode === "chat") return ["/v1/chat/completions", { ...shared, messages: [...first, ...this.messages] }];
    const schema = JSON.parse($("schema").value);
    return ["/v1/chat/completions", {
      ...shared, messages: [...first, { role: "user", content: content($("prompt").value, this.pictures.chosen) }], logprobs: true, top_logprobs: TOP,
      response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: false } },
    }];
  }

  async send() {
    const asked = $("prompt").value;
    if (!asked.trim() && !this.pictures.chosen.length && this.mode !== "completion") return;
    const pictures = this.mode === "chat" ? this.pictures.take() : [], question = make("div", { class: "said user" }, ...pictures.map(thumbnail), asked);
    if (this.mode === "chat") {
      this.messages.push({ role: "user", content: content(asked, pictures) });
      $("dialog").append(question);
      $("prompt").value = "";
    } else this.clear();
    const said = make("div", { class: this.mode === "chat" ? "said" : "said tokens" }), foot = make("p", { class: "quiet note" }, "…");
    if (this.mode === "completion") said.append(make("span", { class: "same" }, asked));
    $("dialog").append(said, foot);
    this.abort = new AbortController();
    $("stop").hidden = false;
    $("send").disabled = true;
    const answer = { text: "", tokens: 0, forced: 0, usage: null, started: performance.now(), first: null, finish: null };
    try {
      const [path, body] = this.body();
      const response = await call(path, { method: "POST", body: JSON.stringify(body), signal: this.abort.signal });
      for await (const line of lines(response)) {
        if (line.startsWith("data: ") && line !== "data: [DONE]") this.take(JSON.parse(line.slice(6)), said, answer);
      }
      foot.textContent = summary(answer);
    } catch (error) {
      foot.textContent = error.name === "AbortError" ? "stopped" : error.message;
      foot.classList.toggle("bad", error.name !== "AbortError");
    }
    if (this.mode === "chat" && foot.classList.contains("bad") && !answer.text) { // it would fail with every later message too
      this.messages.pop();
      question.remove();
      said.remove();
      $("prompt").value ||= asked;
      this.pictures.put(pictures);
    } else if (this.mode === "chat") this.messages.push({ role: "assistant", content: answer.text });
    $("stop").hidden = true;
    $("send").disabled = false;
    this.shades(answer);
  }

  take(event, said, answer) {
    if (event.error) throw new Error(event.error.message);
    answer.usage = event.usage ?? answer.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    answer.first ??= performance.now();
    answer.finish = choice.finish_reason ?? answer.finish;
    const text = choice.text ?? choice.delta?.content ?? "";
    answer.text += text;
    const rows = this.mode === "chat" ? null : this.mode === "json" ? choice.logprobs?.content : completionRows(choice.logprobs);
    if (!rows) said.append(text);
    else for (const row of rows) said.append(this.token(row, answer));
  }

  token(row, answer) {
    const chance = Math.exp(row.logprob), forced = row.forced === true;
    answer.tokens++;
    answer.forced += forced;
    const node = make("button", { type: "button", class: forced ? "token forced" : "token", onclick: () => this.alternatives(row, node) }, row.token);
    if (!forced) node.style.backgroundColor = `color-mix(in srgb, var(--computed) ${Math.round(70 * (1 - chance))}%, transparent)`;
    node.title = forced ? "forced: the grammar left no choice about the text" : `${percent(chance, 1)}${row.allowed ? ` · the grammar allowed ${count(row.allowed)} tokens` : ""}`;
    return node;
  }

  alternatives(row, node) {
    document.querySelector(".token.picked")?.classList.remove("picked");
    node.classList.add("picked");
    const bars = row.top_logprobs.map((other) => {
      const chance = Math.exp(other.logprob), bar = make("div", { class: "stack" }, make("i"));
      bar.firstChild.style.width = `${100 * chance}%`;
      bar.firstChild.style.background = "var(--sampled)";
      return make("div", { class: other.token === row.token ? "choice taken" : "choice" }, make("span", { class: "mono" }, JSON.stringify(other.token)), bar, make("span", { class: "number" }, percent(chance, 1)));
    });
    const masked = row.allowed === undefined ? "" : `${row.forced ? "Forced: the grammar left no choice about the text here" : "The grammar left a choice"}; its mask allowed ${plural(row.allowed, "token")}.`;
    $("alternatives").replaceChildren(make("h3", {}, `${JSON.stringify(row.token)}: the model's own probabilities, before temperature and mask`), ...bars, make("p", { class: "quiet note" }, masked));
  }

  shades(answer) {
    if (!answer.tokens) return;
    const entries = [["certain", "line"], ["a surprise", "computed"]];
    if (this.mode === "json") entries.push([`forced by the grammar: ${answer.forced} of ${plural(answer.tokens, "token")}`, "forced"]);
    legend($("shades"), entries);
  }
}

function completionRows(logprobs) { // OpenAI's columns of a completion, as rows like those of a chat
  if (!logprobs?.tokens) return null;
  return logprobs.tokens.map((token, i) => ({
    token, logprob: logprobs.token_logprobs[i],
    top_logprobs: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ token: other, logprob })).sort((a, b) => b.logprob - a.logprob),
  }));
}

function summary(answer) {
  const parts = [], usage = answer.usage;
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${plural(usage.prompt_tokens, "prompt token")}, ${percent(cached, usage.prompt_tokens)} reused`, plural(usage.completion_tokens, "output token"));
    const seconds = (performance.now() - answer.first) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(0)} a second`);
  }
  if (answer.first !== null) parts.push(`first after ${time((answer.first - answer.started) / 1000)}`);
  if (answer.finish && answer.finish !== "stop") parts.push(`ended by ${answer.finish}`);
  return parts.join(" · ");
}
