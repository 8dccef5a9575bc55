// The official Node SDK, unmodified: chat, completions and models. `test_node.py` runs it and says which cases fail.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';

import OpenAI, { APIConnectionTimeoutError, APIUserAbortError } from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const { url, model, keys } = JSON.parse(process.env.SDK_CASES);
const sdk = (key = keys.free, options = {}) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 60_000, ...options });
const client = sdk();
const question = { role: 'user', content: 'What is the capital of France?' };
const said = 'The capital of France is Paris.';
const asked = { model, messages: [question], temperature: 0, max_tokens: 8 };
const completed = { model, prompt: 'The capital of France is', temperature: 0, max_tokens: 4 };
const City = z.object({ city: z.enum(['Paris', 'Rome']) });
const schema = {
  type: 'object',
  properties: { city: { enum: ['Paris', 'Rome'] } },
  required: ['city'],
  additionalProperties: false,
};
const weather = { type: 'function', function: { name: 'weather', parameters: schema } };
const forced = { ...asked, tools: [weather], tool_choice: 'required', max_tokens: 60 };

const chat = (fields = {}, options = {}) => client.chat.completions.create({ ...asked, ...fields }, options);
const textOf = (answer, index = 0) => answer.choices[index].message.content;
const callsOf = (answer) => answer.choices[0].message.tool_calls ?? [];

async function chunksOf(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const spoken = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');

async function refused(promise) {
  const error = await promise.then(() => assert.fail('was served'), (reason) => reason);
  assert.ok(error instanceof OpenAI.APIError, String(error));
  return error;
}

describe('models', { concurrency: 4 }, () => {
  it('lists models', async () => {
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert.deepEqual(names, [model]);
  });
  it('finds a model', async () => assert.equal((await client.models.retrieve(model)).object, 'model'));
  it('does not find another', async () => {
    const error = await refused(client.models.retrieve('gpt-4'));
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, 'model_not_found');
  });
});

describe('chat', { concurrency: 4 }, () => {
  it('answers', async () => {
    const answer = await chat();
    assert.equal(textOf(answer), said);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.equal(answer.object, 'chat.completion');
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  });
  it('gives the response beside the answer', async () => {
    const { data, response, request_id } = await chat({}, { headers: { 'x-request-id': 'mine-8' } }).withResponse();
    assert.equal(textOf(data), said);
    assert.equal(response.headers.get('x-fairlane-lane'), 'latency');
    assert.equal(request_id, 'mine-8');
  });
  it('gives the response alone', async () => {
    const response = await chat().asResponse();
    assert.equal((await response.json()).choices[0].message.content, said);
  });
  it('has an id for each request', async () => assert.match((await chat({ max_tokens: 1 }))._request_id, /^req_/));
  it('answers choices', async () => {
    const answer = await chat({ n: 3, temperature: 1, seed: 3 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
    assert.equal(new Set(answer.choices.map((choice) => choice.message.content)).size, 3);
  });
  it('repeats what a seed made', async () => {
    const [first, second] = await Promise.all([1, 2].map(() => chat({ temperature: 1, seed: 9 })));
    assert.equal(textOf(first), textOf(second));
  });
  it('stops at a string', async () => assert.equal(textOf(await chat({ stop: ['Paris'] })), 'The capital of France is '));
  it('biases tokens', async () => assert.equal(textOf(await chat({ logit_bias: { 260: 100 } })), ' the'.repeat(8)));
  it('tells logprobs', async () => {
    const { content } = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs;
    assert.ok(content.every((entry) => entry.top_logprobs.length === 2 && entry.logprob <= 0));
    assert.equal(content[0].token, 'The');
  });
  it('limits completion tokens', async () => {
    const answer = await chat({ max_tokens: undefined, max_completion_tokens: 3 });
    assert.deepEqual([answer.usage.completion_tokens, answer.choices[0].finish_reason], [3, 'length']);
  });
  it('takes fields that ask for nothing', async () => {
    const neutral = { store: false, metadata: { a: 'b' }, user: 'someone', verbosity: 'medium', tools: [], top_p: 1 };
    assert.equal(textOf(await chat({ ...neutral, response_format: { type: 'text' }, modalities: ['text'] })), said);
  });
  it('serves a tier', async () => assert.equal((await chat({ service_tier: 'flex', max_tokens: 1 })).service_tier, 'flex'));
  it('serves a lane', async () => {
    const asking = chat({ max_tokens: 1 }, { headers: { 'x-fairlane-lane': 'throughput' } });
    assert.equal((await asking.asResponse()).headers.get('x-fairlane-lane'), 'throughput');
  });
  it('answers once what is sent twice', async () => {
    const once = { idempotencyKey: 'node-once', headers: { 'Idempotency-Key': 'node-once' } };
    const first = await chat({ temperature: 1 }, once);
    const { data, response } = await chat({ temperature: 1 }, once).withResponse();
    assert.equal(data.id, first.id);
    assert.equal(response.headers.get('idempotent-replayed'), 'true');
  });
  it('continues a conversation in parts', async () => {
    const messages = [
      { role: 'developer', content: [{ type: 'text', text: 'Be brief.' }] },
      question,
      { role: 'assistant', content: 'Paris.' },
      { role: 'user', content: [{ type: 'text', text: 'Which country is it in?' }] },
    ];
    assert.match(textOf(await chat({ messages, max_tokens: 16 })), /France/);
  });
});

describe('streams', { concurrency: 4 }, () => {
  it('streams what it would answer', async () => {
    const chunks = await chunksOf(await chat({ stream: true }));
    assert.equal(spoken(chunks), said);
    assert.equal(chunks[0].choices[0].delta.role, 'assistant');
    assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  });
  it('tells usage last', async () => {
    const chunks = await chunksOf(await chat({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.at(-1).usage.completion_tokens, 8);
    assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null));
  });
  it('can be read twice', async () => {
    const [left, right] = (await chat({ stream: true })).tee();
    const [first, second] = await Promise.all([chunksOf(left), chunksOf(right)]);
    assert.deepEqual(first, second);
  });
  it('can be passed on', async () => {
    const passed = (await chat({ stream: true })).toReadableStream();
    const { ChatCompletionStream } = await import('openai/lib/ChatCompletionStream');
    assert.equal(await ChatCompletionStream.fromReadableStream(passed).finalContent(), said);
  });
  it('tells content as events', async () => {
    const stream = client.chat.completions.stream(asked);
    let snapshot;
    stream.on('content', (_, all) => (snapshot = all));
    assert.equal(await stream.finalContent(), said);
    assert.equal(snapshot, said);
    assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, 'stop');
  });
  it('knows the total usage', async () => {
    const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
    assert.equal((await stream.totalUsage()).completion_tokens, 8);
  });
  it('parses what it streams', async () => {
    const format = zodResponseFormat(City, 'place');
    const stream = client.chat.completions.stream({ ...asked, max_tokens: 24, response_format: format });
    assert.match((await stream.finalChatCompletion()).choices[0].message.parsed.city, /Paris|Rome/);
  });
  it('tells arguments as events', async () => {
    const stream = client.chat.completions.stream(forced);
    const events = [];
    stream.on('tool_calls.function.arguments.done', (event) => events.push(event));
    const call = await stream.finalFunctionToolCall();
    assert.equal(call.name, 'weather');
    assert.equal(events[0].arguments, call.arguments);
  });
  it('is left by a break', async () => {
    const stream = await chat({ stream: true, max_tokens: 600, ignore_eos: true });
    for await (const _ of stream) break;
    assert.ok(stream.controller.signal.aborted);
  });
  it('is ended by its controller', async () => {
    const stream = await chat({ stream: true, max_tokens: 600, ignore_eos: true });
    stream.controller.abort();
    assert.ok((await chunksOf(stream)).length < 600);
  });
  it('streams completions', async () => {
    const chunks = await chunksOf(await client.completions.create({ ...completed, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(''), ' Paris.\n\n');
  });
});

describe('completions', { concurrency: 4 }, () => {
  const complete = (fields) => client.completions.create({ ...completed, ...fields });
  it('goes on', async () => assert.equal((await complete()).choices[0].text, ' Paris.\n\n'));
  it('echoes', async () => assert.equal((await complete({ echo: true })).choices[0].text, `${completed.prompt} Paris.\n\n`));
  it('takes several prompts', async () => {
    assert.equal((await complete({ prompt: [completed.prompt, 'One, two,'], n: 2 })).choices.length, 4);
  });
  it('tells logprobs', async () => {
    const { tokens, text_offset } = (await complete({ logprobs: 1 })).choices[0].logprobs;
    assert.deepEqual([tokens[0], text_offset], [' Paris', [0, 6, 7, 8]]);
  });
  it('refuses a suffix', async () => assert.equal((await refused(complete({ suffix: '.' }))).param, 'suffix'));
});

describe('forms and tools', { concurrency: 4 }, () => {
  it('parses an answer', async () => {
    const format = zodResponseFormat(City, 'place');
    const answer = await client.chat.completions.parse({ ...asked, max_tokens: 24, response_format: format });
    assert.match(answer.choices[0].message.parsed.city, /Paris|Rome/);
  });
  it('says that a parsed answer was cut', async () => {
    const format = zodResponseFormat(City, 'place');
    const parsing = client.chat.completions.parse({ ...asked, max_tokens: 2, response_format: format });
    await assert.rejects(parsing, OpenAI.LengthFinishReasonError ?? Error);
  });
  it('answers any object', async () => {
    assert.match(textOf(await chat({ response_format: { type: 'json_object' }, max_tokens: 2 })), /^\{/);
  });
  it('takes the forms of vLLM', async () => {
    assert.match(textOf(await chat({ guided_choice: ['red', 'green'] })), /^(red|green)$/);
  });
  it('calls a function', async () => {
    const answer = await client.chat.completions.create(forced);
    assert.equal(answer.choices[0].finish_reason, 'tool_calls');
    assert.match(JSON.parse(callsOf(answer)[0].function.arguments).city, /Paris|Rome/);
  });
  it('calls the function that is named', async () => {
    const other = { type: 'function', function: { name: 'time', parameters: schema } };
    const choice = { type: 'function', function: { name: 'time' } };
    const answer = await client.chat.completions.create({ ...forced, tools: [weather, other], tool_choice: choice });
    assert.deepEqual(callsOf(answer).map((call) => call.function.name), ['time']);
  });
  it('calls none', async () => assert.deepEqual(callsOf(await chat({ tools: [weather], tool_choice: 'none' })), []));
  it('parses a call', async () => {
    const tool = zodFunction({ name: 'weather', parameters: City });
    const answer = await client.chat.completions.parse({ ...forced, tools: [tool] });
    assert.match(answer.choices[0].message.tool_calls[0].function.parsed_arguments.city, /Paris|Rome/);
  });
  it('goes on after a result', async () => {
    const first = await client.chat.completions.create(forced);
    const result = { role: 'tool', tool_call_id: callsOf(first)[0].id, content: 'Clear.' };
    const answer = await chat({ messages: [question, first.choices[0].message, result], tools: [weather] });
    assert.ok(answer.usage.prompt_tokens > first.usage.prompt_tokens);
  });
  it('runs tools by itself', async () => {
    const cities = [];
    const tool = zodFunction({ name: 'weather', parameters: City, function: ({ city }) => cities.push(city) && 'Clear.' });
    const named = { type: 'function', function: { name: 'weather' } };
    const runner = client.chat.completions.runTools({ ...asked, tools: [tool], tool_choice: named, max_tokens: 60 });
    await runner.done();
    assert.match(cities[0], /Paris|Rome/);
  });
});

describe('refusals', { concurrency: 4 }, () => {
  const wrong = [
    ['temperature', { temperature: 3 }],
    ['messages', { messages: [] }],
    ['audio', { audio: { format: 'mp3', voice: 'alloy' } }],
    ['tools.[0].type', { tools: [{ type: 'custom', custom: { name: 'x' } }] }],
  ];
  for (const [param, fields] of wrong) {
    it(`names ${param}`, async () => {
      const error = await refused(chat(fields));
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.deepEqual([error.status, error.param], [400, param]);
    });
  }
  it('refuses a stream as it would a plain request', async () => {
    assert.equal((await refused(chat({ stream: true, n: 0 }))).param, 'n');
  });
  it('refuses a wrong key', async () => {
    const error = await refused(sdk('fl-nobody-nothing').models.list());
    assert.ok(error instanceof OpenAI.AuthenticationError);
    assert.equal(error.code, 'invalid_api_key');
  });
  it('refuses a lane', async () => {
    const options = { headers: { 'x-fairlane-lane': 'throughput' } };
    const error = await refused(sdk(keys.latency).chat.completions.create(asked, options));
    assert.ok(error instanceof OpenAI.PermissionDeniedError);
    assert.equal(error.code, 'lane_not_allowed');
  });
  it('refuses what the context does not hold', async () => {
    const messages = [{ role: 'user', content: 'word '.repeat(20_000) }];
    const error = await refused(chat({ messages }));
    assert.deepEqual([error.code, error.param], ['context_length_exceeded', 'messages']);
  });
  it('names what it ignores', async () => {
    const { response } = await chat({ flavour: 'mint', max_tokens: 100_000 }).withResponse();
    assert.equal(response.headers.get('x-fairlane-ignored'), 'flavour, max_tokens');
  });
  it('refuses a body that is too large', async () => {
    const messages = [{ role: 'user', content: 'word '.repeat(2_000_000) }];
    assert.equal((await refused(chat({ messages }))).status, 413);
  });
  it('does not try a spent day again', async () => {
    const statuses = [];
    const counting = async (...args) => {
      const response = await fetch(...args);
      statuses.push(response.status);
      return response;
    };
    const spent = sdk(keys.spent, { maxRetries: 3, fetch: counting });
    await spent.completions.create({ model, prompt: 'Hello', max_tokens: 1 });
    const error = await refused(spent.completions.create({ model, prompt: 'Hello', max_tokens: 1 }));
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.deepEqual([error.code, statuses], ['insufficient_quota', [200, 429]]);
  });
  it('conflicts with another request by the same name', async () => {
    const options = { headers: { 'Idempotency-Key': 'node-taken' } };
    await chat({ max_tokens: 1 }, options);
    assert.ok((await refused(chat({ max_tokens: 2 }, options))) instanceof OpenAI.ConflictError);
  });
  it('times out', async () => {
    await assert.rejects(chat({ max_tokens: 600, ignore_eos: true }, { timeout: 200 }), APIConnectionTimeoutError);
  });
  it('is aborted', async () => {
    const controller = new AbortController();
    const asking = chat({ max_tokens: 600, ignore_eos: true }, { signal: controller.signal });
    controller.abort();
    await assert.rejects(asking, APIUserAbortError);
  });
});
