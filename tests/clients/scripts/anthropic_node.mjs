// Anthropic's client for Node.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { MODEL, URL, main } from "./harness.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name three colours." }];
const input_schema = { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] };
const tools = [{ name: "weather", description: "The weather.", input_schema }];

await main({
  async message() {
    const answer = await client.messages.create({ model: MODEL, max_tokens: 8, messages, system: "You are brief." });
    assert(answer.content[0].text);
  },
  async message_stream() {
    const stream = client.messages.stream({ model: MODEL, max_tokens: 8, messages });
    let text = "";
    stream.on("text", (part) => { text += part; });
    assert.equal((await stream.finalMessage()).content[0].text, text);
  },
  async tools_stream() {
    const stream = client.messages.stream({ model: MODEL, max_tokens: 64, messages, tools, tool_choice: { type: "any" } });
    const answer = await stream.finalMessage();
    assert(["Rome", "Oslo"].includes(answer.content[0].input.city));
  },
  async count_tokens() {
    assert((await client.messages.countTokens({ model: MODEL, messages, tools })).input_tokens > 10);
  },
});
