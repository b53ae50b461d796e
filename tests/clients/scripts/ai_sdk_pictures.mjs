// Vercel's AI SDK: pictures in prompts, on responses, chats, openai-compatible and messages.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText } from "ai";
import { z } from "zod";
import { MODEL, V1, main, picture } from "./harness.mjs";

const openai = createOpenAI({ baseURL: V1, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "radixrt", baseURL: V1, apiKey: "none", supportsStructuredOutputs: true, includeUsage: true });
const anthropic = createAnthropic({ baseURL: V1, apiKey: "none" });
const models = { responses: openai(MODEL), chat: openai.chat(MODEL), compatible: compatible(MODEL), messages: anthropic(MODEL) };
const schema = z.object({ colour: z.enum(["red", "green", "blue"]), people: z.boolean() });
const ask = (...seeds) => [{
  role: "user",
  content: [{ type: "text", text: "What is on the picture?" }, ...seeds.map((seed) => ({ type: "image", image: picture(seed), mediaType: "image/png" }))],
}];

const cases = {};
for (const [name, model] of Object.entries(models)) {
  cases[`${name}_text`] = async () => {
    const { usage } = await generateText({ model, maxOutputTokens: 16, maxRetries: 0, messages: ask(0, 1) });
    assert(usage.inputTokens > 24);
  };
  cases[`${name}_text_stream`] = async () => {
    const result = streamText({ model, maxOutputTokens: 16, maxRetries: 0, messages: ask(0), onError: ({ error }) => { throw error; } });
    for await (const part of result.textStream) assert(typeof part === "string");
    assert((await result.usage).outputTokens <= 16);
  };
  cases[`${name}_object`] = async () => {
    const { object } = await generateObject({ model, maxOutputTokens: 96, maxRetries: 0, schema, messages: ask(1) });
    assert(typeof object.people === "boolean");
  };
}
await main(cases);
