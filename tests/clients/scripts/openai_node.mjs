// openai-node.

import assert from "node:assert/strict";
import OpenAI, { NotFoundError } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { MODEL, V1, main } from "./harness.mjs";

const client = new OpenAI({ baseURL: V1, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name three colours." }];
const City = z.object({ name: z.string(), size: z.enum(["small", "large"]) });

await main({
  async models() {
    assert.equal((await client.models.list()).data[0].id, MODEL);
  },
  async chat() {
    const answer = await client.chat.completions.create({ model: MODEL, messages, max_completion_tokens: 8 });
    assert(answer.choices[0].message.content);
  },
  async chat_stream() {
    const stream = client.chat.completions.stream({
      model: MODEL, messages, max_tokens: 8, stream_options: { include_usage: true },
    });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, (await stream.finalChatCompletion()).choices[0].message.content);
    assert((await stream.totalUsage()).completion_tokens <= 8);
  },
  async chat_parse() {
    const answer = await client.chat.completions.parse({
      model: MODEL, messages, max_tokens: 96, response_format: zodResponseFormat(City, "city"),
    });
    assert(["small", "large"].includes(answer.choices[0].message.parsed.size));
  },
  async chat_run_tools() {
    const asked = [];
    const weather = {
      type: "function",
      function: {
        name: "weather", description: "The weather.", parse: JSON.parse, strict: true,
        function: (input) => { asked.push(input); return "Sunny."; },
        parameters: {
          type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"], additionalProperties: false,
        },
      },
    };
    const runner = client.chat.completions.runTools(
      { model: MODEL, messages, max_tokens: 48, tools: [weather], tool_choice: "required", stream: true },
      { maxChatCompletions: 2 },
    );
    await runner.done();
    assert(asked.length > 0);
  },
  async chat_tools() {
    const answer = await client.chat.completions.parse({
      model: MODEL, messages, max_tokens: 96, tools: [zodFunction({ name: "city", parameters: City })],
      tool_choice: { type: "function", function: { name: "city" } },
    });
    assert(answer.choices[0].message.tool_calls[0].function.parsed_arguments.size);
  },
  async completions() {
    const answer = await client.completions.create({ model: MODEL, prompt: "One, two,", max_tokens: 4 });
    assert(answer.choices[0].text);
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: MODEL, input: ["a cat", "a dog"] });
    assert(answer.data[1].embedding.length > 100);
  },
  async responses() {
    const answer = await client.responses.create({ model: MODEL, input: "Name a colour.", max_output_tokens: 16 });
    assert(answer.output_text);
    assert.equal((await client.responses.retrieve(answer.id)).id, answer.id);
  },
  async responses_stream() {
    const stream = client.responses.stream({
      model: MODEL, input: "A city.", max_output_tokens: 96, text: { format: zodTextFormat(City, "city") },
    });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    assert(kinds.includes("response.output_text.delta"));
    assert((await stream.finalResponse()).output_parsed.size);
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ model: "gpt-x", messages }), NotFoundError);
  },
});
