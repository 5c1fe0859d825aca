import { systemClock } from '@floe-rl/core';
import { type ChatTool, engineSpecSchema, samplingSchema } from '@floe-rl/core/schema';
import { type FaultKind, type SimOptions, type SimServer, startSim, TEMPLATE_MODES } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import type { ReplyDelta } from '../../../src/reply.ts';

let sim: SimServer;
let engine: Engine;
afterEach(async () => {
  await engine.close();
  await sim.close();
});

async function start(options: SimOptions): Promise<void> {
  sim = await startSim(options);
  engine = await createVllmEngine(engineSpecSchema.parse({ base_url: sim.url }), { clock: systemClock });
}

const tools: ChatTool[] = [
  { type: 'function', function: { name: 'bash', parameters: { type: 'object' } } },
  { type: 'function', function: { name: 'read', parameters: { type: 'object' } } },
];

function request(seed: number, over: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    completionId: 'cpl_same',
    sessionId: 'ses_1',
    pool: 'default',
    prompt: null,
    resumeFrom: null,
    policyVersion: null,
    messageTexts: ['{"role":"user","content":"Repair it."}'],
    tools,
    toolsText: JSON.stringify(tools),
    toolChoice: null,
    parallelToolCalls: null,
    responseFormat: null,
    sampling: samplingSchema.parse({ temperature: 1 }),
    maxTokens: null,
    stop: [],
    seed,
    ...over,
  };
}

/** Replaces the ids of tool calls by fixed ones, because they differ in every reply. */
function withoutIds(reply: GenerateReply): GenerateReply {
  const { message } = reply;
  const calls = message.tool_calls?.map((call, index) => ({ ...call, id: `call_${index}` }));
  return { ...reply, message: { ...message, ...(calls === undefined ? {} : { tool_calls: calls }) } };
}

async function bothWays(
  sentCall: GenerateRequest,
): Promise<{ whole: GenerateReply; streamed: GenerateReply; deltas: ReplyDelta[] }> {
  const never = new AbortController().signal;
  const whole = await engine.generate(sentCall, never);
  const deltas: ReplyDelta[] = [];
  const listener = { started: () => {}, delta: (delta: ReplyDelta) => void deltas.push(delta) };
  const streamed = await engine.generate({ ...sentCall, listener }, never);
  // The number of cached tokens is not compared, because the content of the prefix cache may differ.
  const cached = { cached_tokens: 0 };
  return {
    whole: withoutIds({ ...whole, usage: { ...whole.usage, ...cached } }),
    streamed: withoutIds({ ...streamed, usage: { ...streamed.usage, ...cached } }),
    deltas,
  };
}

const call = (tool: string, text: string) => ({ call: { tool, arguments: { path: text, list: [1, { a: null }] } } });
const scenarios: [string, object[]][] = [
  ['text', [{ text: 'All done, 日本語 😀 — done.' }]],
  ['thinking and text', [{ think: { text: 'Let me see.', noise: 40 } }, { text: 'It was nothing.' }]],
  ['thinking alone and a call', [{ think: { noise: 25 } }, call('bash', 'ls "a b" é')]],
  ['parallel calls', [call('bash', 'one'), call('read', 'two'), call('bash', 'three')]],
  ['text and parallel calls', [{ text: 'Two things.' }, call('bash', '}{"]['), call('read', '\\"x\\"')]],
  ['a choice', [{ choice: { id: 'c', options: [{ reply: [{ text: 'Yes.' }] }, { reply: [call('bash', 'no')] }] } }]],
];

describe.each([...TEMPLATE_MODES])('streamed and whole replies with a seed and the %s template', (templateMode) => {
  it.each(scenarios)('are equal for %s', async (_, reply) => {
    await start({ templateMode, scenarios: [{ name: 's', rules: [{ reply }] }] as SimOptions['scenarios'] });
    for (const seed of [1, 2, 3]) {
      const { whole, streamed, deltas } = await bothWays(request(seed));
      expect(streamed).toEqual(whole);
      expect(deltas.length).toBeGreaterThan(0);
    }
    expect(engine.info().streaming).toBe(true);
  });

  it('are equal when the token limit ends them in thinking or in text, and when a stop string does', async () => {
    const reply = [{ think: { text: 'Let me think about it.' } }, { text: 'One two three four five six seven.' }];
    await start({ templateMode, scenarios: [{ name: 's', rules: [{ reply }] }] as SimOptions['scenarios'] });
    for (const maxTokens of [1, 3, 12, 15]) {
      const { whole, streamed } = await bothWays(request(7, { maxTokens }));
      expect(streamed).toEqual(whole);
      expect(streamed.finishReason).toBe('length');
    }
    for (const stop of ['three four', 'about', ' seven.']) {
      const { whole, streamed } = await bothWays(request(7, { stop: [stop] }));
      expect(streamed).toEqual(whole);
      expect(streamed.stop).toEqual({ kind: 'string', text: stop });
    }
  });
});

/** Every fault that the simulated engine can put into a reply, with a pattern that the error message must match. */
const faultyReplies: [FaultKind, RegExp][] = [
  ['missing_ids', /token_ids is missing/],
  ['logprobs_length', /logprobs\.content has \d+ entries for \d+ token_ids/],
  ['logprob_nan', /not JSON/],
  ['logprob_null', /logprobs\.content\.0\.logprob is not a finite number/],
  ['logprob_positive', /logprobs\.content\.0\.logprob is 0\.5, above 0/],
  ['usage_mismatch', /token_ids has \d+ ids, but usage\.completion_tokens is \d+/],
  ['off_by_one_logprobs', /logprobs\.content\.\d+ is of token_id:\d+, but token_ids\.\d+ is \d+/],
  ['error_body_200', /200 with an error inside/],
  ['garbage', /not JSON/],
  ['model_changed', /model is ".*", at registration it was floe-sim/],
  ['dies_mid_stream', /broke off|closed the connection|failed/],
  ['reset_mid', /broke off/],
];

describe.each(['chat', 'streamed', 'tokens'] as const)('a faulty engine in %s mode', (mode) => {
  const ask = async (): Promise<GenerateReply> => {
    const sentCall = request(1);
    const listener = { started: () => {}, delta: () => {} };
    const never = new AbortController().signal;
    if (mode !== 'tokens') return engine.generate(mode === 'chat' ? sentCall : { ...sentCall, listener }, never);
    const ids = await engine.render({ ...sentCall, generationPrompt: true }, never);
    return engine.generate({ ...sentCall, prompt: { ids, json: Buffer.from(ids.join(',')) } }, never);
  };

  it.each(faultyReplies)('has its reply rejected for the fault %s', async (kind, message) => {
    await start({ scaleOut: true });
    await expect(ask()).resolves.toMatchObject({ finishReason: 'stop' });
    sim.setFaults([{ kind }]);
    await expect(ask()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(message),
      details: { engine_id: engine.info().engine_id },
    });
    expect(engine.info()).toMatchObject({ inflight: 0, healthy: false });
  });

  it('has its reply rejected when it contains the ids of another call', async () => {
    await start({ scaleOut: true });
    const other = ['{"role":"user","content":"Something else, and longer."}'];
    await engine.generate(request(2, { completionId: 'cpl_other', messageTexts: other }), new AbortController().signal);
    sim.setFaults([{ kind: 'foreign_ids' }]);
    await expect(ask()).rejects.toMatchObject({
      code: 'engine_error',
      message: expect.stringMatching(/prompt_token_ids (?:has|are not)/),
    });
  });
});

it('a reply to ids that differ from the sent ones is rejected', async () => {
  await start({ scaleOut: true });
  sim.setFaults([{ kind: 'echo_other_prompt' }]);
  const never = new AbortController().signal;
  const ids = await engine.render({ ...request(1), generationPrompt: true }, never);
  const prompt = { ids, json: Buffer.from(ids.join(',')) };
  await expect(engine.generate(request(1, { prompt }), never)).rejects.toMatchObject({
    code: 'engine_error',
    message: expect.stringMatching(/prompt_token_ids are not the \d+ ids that were sent, from index \d+ on/),
  });
});

it('faults in a stream are rejected as in a reply that is not streamed', async () => {
  await start({});
  const never = new AbortController().signal;
  const listener = { started: () => {}, delta: () => {} };
  for (const kind of [
    'logprob_nan',
    'logprob_null',
    'logprob_positive',
    'garbage',
    'error_body_200',
    'reset_mid',
  ] as const) {
    sim.setFaults([{ kind }]);
    await expect(engine.generate(request(1, { listener }), never), kind).rejects.toMatchObject({
      code: 'engine_error',
    });
    expect(engine.info().streaming, kind).toBe(true);
  }
  sim.setFaults([{ kind: 'usage_mismatch', times: 1 }]);
  await expect(engine.generate(request(1, { listener }), never)).rejects.toMatchObject({ code: 'engine_error' });
  expect(engine.info().streaming).toBe(false);
  await expect(engine.generate(request(1, { listener }), never)).resolves.toMatchObject({
    finishReason: expect.any(String),
  });
});

it('an engine whose stream lacks a log-probability streams no more', async () => {
  await start({});
  const never = new AbortController().signal;
  const listener = { started: () => {}, delta: () => {} };
  sim.setFaults([{ kind: 'logprobs_length', times: 1 }]);
  await expect(engine.generate(request(1, { listener }), never)).rejects.toMatchObject({ code: 'engine_error' });
  expect(engine.info().streaming).toBe(false);
});

it('a stream may be split anywhere, and lost ids are detected', async () => {
  await start({ scenarios: [{ name: 's', rules: [{ reply: [call('bash', 'é😀')] }] }] as SimOptions['scenarios'] });
  sim.setFaults([{ kind: 'chunk_split' }]);
  const whole = await bothWays(request(4));
  expect(whole.streamed).toEqual(whole.whole);
  sim.setFaults([{ kind: 'stream_lost_ids' }]);
  const never = new AbortController().signal;
  const listener = { started: () => {}, delta: () => {} };
  await expect(engine.generate(request(4, { listener }), never)).rejects.toMatchObject({
    code: 'engine_error',
    message: expect.stringMatching(/token_ids has \d+ ids, but usage/),
  });
  await expect(engine.generate(request(4, { listener }), never)).resolves.toMatchObject({ finishReason: 'tool_calls' });
});
