// Vercel's AI SDK: an answer, a stream with its usage, an object of a schema, a tool round trip, and what is told at a
// limit. Reads OPENAI_API_KEY, and OPENAI_BASE_URL where the gateway is not on this machine.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, Output, RetryError, streamText, tool } from 'ai';
import { z } from 'zod';

const fairlane = createOpenAICompatible({
  name: 'fairlane',
  baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8000/v1',
  apiKey: process.env.OPENAI_API_KEY,
  includeUsage: true, // of streams
  supportsStructuredOutputs: true, // the schema is sent, and the answer is held to it
});
const asked = { model: fairlane('SmolLM2-135M-Instruct'), temperature: 0, maxOutputTokens: 64 };

const weather = tool({
  description: 'The weather of a city.',
  inputSchema: z.object({ city: z.string(), unit: z.enum(['celsius', 'fahrenheit']) }),
  execute: async ({ city, unit }) => `It is 18 degrees ${unit} in ${city}.`,
});

async function chat() {
  const { text } = await generateText({ ...asked, prompt: 'What is the capital of France?' });
  console.log(text);
}

async function stream() {
  let refused; // a stream tells of errors here alone, and ends
  const answer = streamText({
    ...asked,
    prompt: 'Say in one sentence what a river is.',
    onError: ({ error }) => { refused = error; },
  });
  for await (const piece of answer.textStream) process.stdout.write(piece);
  if (refused) throw refused;
  const { inputTokens, outputTokens } = await answer.usage;
  console.log(`\n${inputTokens} prompt tokens, ${outputTokens} output tokens`);
}

async function object() {
  const schema = z.object({ name: z.string(), country: z.string(), kind: z.enum(['capital', 'town', 'village']) });
  const { output } = await generateText({
    ...asked,
    prompt: 'Which city has the Eiffel Tower?',
    output: Output.object({ schema }),
  });
  console.log(output);
}

async function callTool() {
  const { steps } = await generateText({
    ...asked,
    prompt: 'What is the weather in Paris?',
    tools: { weather },
    stopWhen: isStepCount(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  });
  console.log(steps[0].toolCalls[0].input, steps[0].toolResults[0].output);
  console.log(steps[1].text);
}

try {
  await chat();
  await stream();
  await object();
  await callTool();
} catch (error) {
  const last = RetryError.isInstance(error) ? error.lastError : error; // it has tried three times
  if (last.statusCode !== 429) throw error;
  console.error(`${last.data.error.code}: it would fit in ${last.responseHeaders['retry-after']} s`);
  process.exitCode = 1;
}
