// Vercel's AI SDK: its default OpenAI provider (responses), the same on chats and completions, openai-compatible, Anthropic.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, V1, main } from "./harness.mjs";

const openai = createOpenAI({ baseURL: V1, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "radixrt", baseURL: V1, apiKey: "none", supportsStructuredOutputs: true, includeUsage: true });
const anthropic = createAnthropic({ baseURL: V1, apiKey: "none" });
const models = { responses: openai(MODEL), chat: openai.chat(MODEL), compatible: compatible(MODEL), messages: anthropic(MODEL) };
const schema = z.object({ name: z.string(), size: z.enum(["small", "large"]) });
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
  execute: async ({ city }) => `Sunny in ${city}.`,
});

const cases = {};
for (const [name, model] of Object.entries(models)) {
  const short = { model, maxOutputTokens: 16, maxRetries: 0, system: "You are brief." };
  const longer = { model, maxOutputTokens: 96, maxRetries: 0 };

  cases[`${name}_text`] = async () => {
    const { text, usage } = await generateText({ ...short, prompt: "Name a colour." });
    assert(text);
    assert(usage.outputTokens <= 16);
  };
  cases[`${name}_text_stream`] = async () => {
    const result = streamText({ ...short, prompt: "Name a colour.", onError: ({ error }) => { throw error; } });
    let text = "";
    for await (const part of result.textStream) text += part;
    assert(text);
    assert((await result.usage).outputTokens <= 16);
  };
  cases[`${name}_object`] = async () => {
    assert((await generateObject({ ...longer, schema, prompt: "A city." })).object.size);
    assert((await generateText({ ...longer, prompt: "A city.", output: Output.object({ schema }) })).output.size);
  };
  cases[`${name}_object_stream`] = async () => {
    const result = streamObject({ ...longer, schema, prompt: "A city." });
    for await (const part of result.partialObjectStream) assert(part);
    assert((await result.object).size);
  };
  cases[`${name}_tools`] = async () => {
    const result = await generateText({
      ...longer, prompt: "The weather in Rome?", tools: { weather }, stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: "tool", toolName: "weather" } : "none" }),
    });
    assert.equal(result.steps.length, 2);
    assert.match(result.steps[0].toolResults[0].output, /Sunny/);
  };
  cases[`${name}_tools_stream`] = async () => {
    const result = streamText({
      ...longer, prompt: "The weather in Rome?", tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1),
      onError: ({ error }) => { throw error; },
    });
    const kinds = new Set();
    for await (const part of result.fullStream) kinds.add(part.type);
    for (const kind of ["tool-input-delta", "tool-call", "tool-result"]) assert(kinds.has(kind), [...kinds].join());
  };
}
cases.responses_stateless = async () => {
  const result = await generateText({
    model: models.responses, maxOutputTokens: 96, maxRetries: 0, prompt: "The weather in Rome?", tools: { weather },
    stopWhen: stepCountIs(2), providerOptions: { openai: { store: false } },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  });
  assert.equal(result.steps.length, 2);
};
cases.completion = async () => {
  const { text } = await generateText({ model: openai.completion(MODEL), maxOutputTokens: 8, prompt: "One, two,", maxRetries: 0 });
  assert(text);
};
cases.embeddings = async () => {
  for (const model of [openai.embedding(MODEL), compatible.textEmbeddingModel(MODEL)]) {
    const { embeddings } = await embedMany({ model, values: ["a cat", "a dog"], maxRetries: 0 });
    assert.equal(embeddings.length, 2);
  }
};
await main(cases);
