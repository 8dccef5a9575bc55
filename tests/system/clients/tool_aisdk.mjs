// Vercel's AI SDK in two turns that each call a tool, over the APIs of three of its providers, streamed and not.

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
const openai = createOpenAI({ baseURL, apiKey });
const models = {
  compatible: createOpenAICompatible({ name: 'fairlane', baseURL, apiKey, includeUsage: true })(model),
  chat: openai.chat(model),
  responses: openai.responses(model),
  messages: createAnthropic({ baseURL, apiKey })(model),
};
const tools = {
  get_weather: tool({
    description: 'Return the weather of a place.',
    inputSchema: z.object({ location: z.string() }),
    execute: async ({ location }) => `sunny in ${location}`,
  }),
};

async function ask(named, messages, streamed) {
  const asked = { model: named, tools, messages, stopWhen: isStepCount(3), maxRetries: 0 };
  if (!streamed) return generateText(asked);
  const answer = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  for await (const _ of answer.textStream);
  return { text: await answer.text, responseMessages: await answer.responseMessages, totalUsage: await answer.totalUsage };
}

for (const [name, named] of Object.entries(models)) {
  for (const streamed of [false, true]) {
    const messages = [];
    for (const content of ['What is the weather in Paris?', 'And tomorrow?']) {
      messages.push({ role: 'user', content });
      const { text, responseMessages, totalUsage } = await ask(named, messages, streamed);
      messages.push(...responseMessages);
      console.log(`${name} ${totalUsage.outputTokens > 0}: ${text}`);
    }
  }
}
