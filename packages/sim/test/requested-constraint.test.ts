import { afterEach, describe, expect, it } from 'vitest';
import { type SimOptions, type SimServer, startSim } from '../src/index.ts';
import { assembled, type Choice, type Chunk, events, post } from './sse.ts';

const bash = { type: 'function', function: { name: 'bash' } };
const read = { type: 'function', function: { name: 'read' } };
const scenarios = [
  {
    name: 'mixed',
    rules: [
      {
        when: { last_user: { contains: 'talk' } },
        reply: [{ think: 4 }, { text: 'Just words.' }],
      },
      {
        reply: [
          { think: 4 },
          {
            choice: {
              id: 'way',
              options: [
                { logit: 3, reply: [{ text: 'Just words.' }] },
                { logit: 0, reply: [{ text: '{"answer": "yes"}' }] },
                { logit: 0, reply: [{ text: '{"answer": 42}' }] },
                { logit: 0, reply: [{ text: 'Both.' }, { call: { tool: 'bash' } }, { call: { tool: 'read' } }] },
                { logit: 0, reply: [{ call: { tool: 'bash', arguments: { command: 'ls' } } }] },
                { logit: 0, reply: [{ call: { tool: 'read' } }] },
              ],
            },
          },
        ],
      },
    ],
  },
];
const messages = [{ role: 'user', content: 'Go.' }];
const answer = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };

const running: SimServer[] = [];
async function start(options: SimOptions = {}): Promise<SimServer> {
  const sim = await startSim({ scenarios, ...options });
  running.push(sim);
  return sim;
}
afterEach(async () => {
  for (const sim of running.splice(0)) await sim.close();
});

async function reply(sim: SimServer, body: object): Promise<Choice> {
  const response = await post(`${sim.url}/v1/chat/completions`, {
    messages,
    return_token_ids: true,
    logprobs: true,
    ...body,
  });
  expect(response.status).toBe(200);
  const [choice] = ((await response.json()) as Chunk).choices;
  if (choice === undefined) throw new Error('the reply has no choice');
  return choice;
}

async function streamed(sim: SimServer, body: object): Promise<Choice> {
  const all = { messages, return_token_ids: true, logprobs: true, stream: true, ...body };
  return assembled(events(await (await post(`${sim.url}/v1/chat/completions`, all)).text()));
}

async function refusal(sim: SimServer, body: object): Promise<NonNullable<Chunk['error']>> {
  const response = await post(`${sim.url}/v1/chat/completions`, { messages, ...body });
  expect(response.status).toBe(400);
  const { error } = (await response.json()) as Chunk;
  if (error === undefined) throw new Error('the refusal has no error');
  expect(sim.ledger.total).toBe(0);
  return error;
}

describe('response_format', () => {
  it.each([
    [{ response_format: { type: 'json_object' } }, ['{"answer": "yes"}', '{"answer": 42}']],
    [{ response_format: { type: 'json_schema', json_schema: { name: 'a', schema: answer } } }, ['{"answer": "yes"}']],
    [{ structured_outputs: { json: answer } }, ['{"answer": "yes"}']],
    [{ structured_outputs: { json: JSON.stringify(answer) } }, ['{"answer": "yes"}']],
    [{ structured_outputs: { json_object: true } }, ['{"answer": "yes"}', '{"answer": 42}']],
  ])('%j is satisfied, with logprobs that the oracle confirms', async (body, texts) => {
    const sim = await start();
    const observed = new Set<string>();
    for (let seed = 0; seed < 12; seed++) {
      const choice = await reply(sim, { ...body, seed, temperature: 0.8 });
      observed.add(choice.message.content?.trim() ?? '');
      expect(choice.message.reasoning).toMatch(/^\n( [a-z]+){4}\n$/);
    }
    expect([...observed].sort()).toEqual(texts);
    for (const entry of sim.ledger.entries()) {
      const expected = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
      for (const [index, logp] of entry.processed_logprobs.entries()) {
        expect(logp).toBeCloseTo(expected.processed[index] ?? Number.NaN, 9);
        expect(entry.raw_logprobs[index]).toBeCloseTo(expected.raw[index] ?? Number.NaN, 9);
      }
      expect(entry.processed_logprobs).not.toEqual(entry.raw_logprobs);
    }
  });

  it('allows replies of calls alone when there are tools, and treats them as content otherwise', async () => {
    const sim = await start();
    const observed = new Set<string>();
    const body = {
      response_format: { type: 'json_schema', json_schema: { name: 'a', schema: answer } },
      tools: [bash],
    };
    for (let seed = 0; seed < 16; seed++) {
      const { message } = await reply(sim, { ...body, seed });
      observed.add(message.tool_calls?.[0]?.function.name ?? message.content?.trim() ?? '');
    }
    expect([...observed].sort()).toEqual(['bash', '{"answer": "yes"}']);
    const none = await reply(sim, { ...body, tool_choice: 'none', seed: 1 });
    expect(none.message.content?.trim()).toBe('{"answer": "yes"}');
  });

  it('has no effect with the type text', async () => {
    const sim = await start();
    const free = await reply(sim, { seed: 4 });
    const text = await reply(sim, { seed: 4, response_format: { type: 'text' } });
    expect(text.token_ids).toEqual(free.token_ids);
    expect(text.logprobs).toEqual(free.logprobs);
    expect(sim.ledger.entries()[1]?.params.constraint).toBeNull();
  });

  it.each([
    ['that no reply satisfies', { type: 'json_object' }, 'no reply of the scenario satisfies it'],
    ['without its schema', { type: 'json_schema' }, '`json_schema` must be set'],
    ['of another type', { type: 'structural_tag' }, 'structural_tag is not supported'],
    [
      'with an unresolved reference',
      { type: 'json_schema', json_schema: { name: 'a', schema: { $ref: '#/x' } } },
      '#/x',
    ],
  ])("is refused %s with the field's name", async (_, format, words) => {
    const sim = await start();
    // The case with the unresolved reference `#/x` sends the default messages, to which the policy replies with a tool call. All other
    // cases send a message to which the policy replies with text.
    const body = words === '#/x' ? {} : { messages: [{ role: 'user', content: 'Just talk.' }] };
    const error = await refusal(sim, { ...body, response_format: format });
    expect(error).toMatchObject({ type: 'BadRequestError', param: 'response_format', code: 400 });
    expect(error.message).toMatch(/^response_format: /);
    expect(error.message).toContain(words);
  });

  it('is refused before a stream begins', async () => {
    const sim = await start();
    const error = await refusal(sim, {
      messages: [{ role: 'user', content: 'Just talk.' }],
      response_format: { type: 'json_object' },
      stream: true,
    });
    expect(error.param).toBe('response_format');
  });

  it('is refused for other keys of structured_outputs and by text completions', async () => {
    const sim = await start();
    expect((await refusal(sim, { structured_outputs: { regex: 'a' } })).message).toContain('regex');
    expect((await refusal(sim, { structured_outputs: { json: '{' } })).message).toContain('not valid JSON');
    const response = await post(`${sim.url}/v1/completions`, { prompt: 'x', response_format: { type: 'json_object' } });
    expect(response.status).toBe(400);
    expect(((await response.json()) as Chunk).error?.message).toContain('response_format');
  });
});

describe('tool_choice', () => {
  it('gives a call every time and the finish reason tool_calls when required or named', async () => {
    const sim = await start();
    const named = { type: 'function', function: { name: 'read' } };
    for (let seed = 0; seed < 8; seed++) {
      const any = await reply(sim, { tools: [bash, read], tool_choice: 'required', seed });
      expect(any.message.tool_calls.length).toBeGreaterThan(0);
      expect(any.finish_reason).toBe('tool_calls');
      const one = await reply(sim, { tools: [bash, read], tool_choice: named, seed });
      expect(one.message.tool_calls.map((call) => call.function.name)).toEqual(['read']);
      expect(one.finish_reason).toBe('tool_calls');
      expect((await streamed(sim, { tools: [bash, read], tool_choice: named, seed })).finish_reason).toBe('tool_calls');
    }
    expect(sim.ledger.entries()[0]?.params.constraint).toEqual({ kind: 'call', names: ['bash', 'read'] });
  });

  it('calls only tools of the request when required', async () => {
    const sim = await start();
    for (let seed = 0; seed < 24; seed++) {
      const one = await reply(sim, { tools: [read], tool_choice: 'required', seed });
      expect(one.message.tool_calls.map((call) => call.function.name)).toEqual(['read']);
    }
  });

  it('takes precedence over a format', async () => {
    const sim = await start();
    const body = { tools: [bash], tool_choice: 'required', response_format: { type: 'json_object' }, seed: 1 };
    expect((await reply(sim, body)).message.tool_calls.length).toBeGreaterThan(0);
  });

  it('leaves calls in the content when it is none', async () => {
    const sim = await start({
      scenarios: [{ name: 's', rules: [{ reply: [{ call: { tool: 'bash', arguments: {} } }] }] }],
    });
    const choice = await reply(sim, { tools: [bash], tool_choice: 'none' });
    expect(choice.message).not.toHaveProperty('tool_calls');
    expect(choice.message.content).toContain('<tool_call>');
    expect(choice.finish_reason).toBe('stop');
  });

  it.each([
    ['that no reply satisfies', { tools: [bash], tool_choice: 'required' }, 'no reply of the scenario satisfies it'],
    [
      'that only calls of other tools satisfy',
      { messages, tools: [{ type: 'function', function: { name: 'write' } }], tool_choice: 'required' },
      'no reply of the scenario satisfies it',
    ],
    ['without tools', { tool_choice: 'required' }, '`tools` must be set'],
    ['that is unknown', { tools: [bash], tool_choice: 'any' }, 'Invalid value for `tool_choice`: any'],
    [
      'of a tool that is not offered',
      { tools: [bash], tool_choice: { type: 'function', function: { name: 'write' } } },
      'does not match any of the specified `tools`',
    ],
  ])("is refused %s with the field's name", async (_, body, words) => {
    const sim = await start();
    const error = await refusal(sim, { messages: [{ role: 'user', content: 'Just talk.' }], ...body });
    expect(error).toMatchObject({ param: 'tool_choice', code: 400 });
    expect(error.message).toContain(words);
  });

  it('shows only the first call but all ids with parallel_tool_calls false', async () => {
    const calls = [{ call: { tool: 'bash' } }, { call: { tool: 'read' } }];
    const sim = await start({ scenarios: [{ name: 's', rules: [{ reply: [{ think: 4 }, ...calls] }] }] });
    const body = { tools: [bash, read], tool_choice: 'required', seed: 2 };
    const both = await reply(sim, body);
    expect(both.message.tool_calls.length).toBe(2);
    for (const one of [
      await reply(sim, { ...body, parallel_tool_calls: false }),
      await streamed(sim, { ...body, parallel_tool_calls: false }),
    ]) {
      expect(one.message.tool_calls.map((call) => call.function)).toEqual([{ name: 'bash', arguments: '{}' }]);
      expect(one.token_ids).toEqual(both.token_ids);
      expect(one.finish_reason).toBe('tool_calls');
    }
  });
});
