import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { type FaultKind, type SimConfigInput, type SimServer, startSim } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import type { Engine, GenerateReply, GenerateRequest } from '../../../src/engines/engine.ts';
import { createSglangEngine } from '../../../src/engines/sglang/engine.ts';
import { generateAsPool } from '../pool-call.ts';
import { askRequest, prompted } from './scripted-sglang.ts';

const never = new AbortController().signal;
let sim: SimServer;
let engine: Engine;

afterEach(async () => {
  await engine.close();
  await sim.close();
});

async function start(settings: SimConfigInput = {}, forceNative = false): Promise<void> {
  const scenarios = [{ name: 'long', rules: [{ reply: [{ think: 400 }, { text: 'Done, at last.' }] }] }];
  sim = await startSim({ face: 'sglang', scenarios, ...settings });
  const spec = engineSpecSchema.parse({ kind: 'sglang', base_url: sim.url });
  engine = await createSglangEngine(spec, { clock: systemClock }, { forceNative });
}

async function promptIds(): Promise<Int32Array> {
  const { completionId, sessionId, pool, messageTexts, toolsText } = askRequest();
  return engine.render({ completionId, sessionId, pool, messageTexts, toolsText, generationPrompt: true }, never);
}

async function byTokens(over: Partial<GenerateRequest> = {}): Promise<GenerateReply> {
  const prompt = prompted([...(await promptIds())]);
  return generateAsPool(engine, askRequest({ prompt, maxTokens: null, ...over }), never);
}

async function running(): Promise<void> {
  while (sim.engine.running === 0) await new Promise((resolve) => setImmediate(resolve));
}

/** Resolves when the engine has sampled at least one token since this function was called. */
async function sampled(): Promise<void> {
  const count = async (): Promise<number> => {
    const text = await (await fetch(`${sim.url}/metrics`)).text();
    return Number(/^sglang:generation_tokens_total(?:\{[^}]*\})? (\d+)/m.exec(text)?.[1]);
  };
  const before = await count();
  while ((await count()) <= before) await new Promise((resolve) => setImmediate(resolve));
}

/** Samples a reply that a pause interrupts after its first token, and updates the engine's weights before it resumes the engine. */
async function brokenOff(): Promise<{ reply: GenerateReply; completionId: string }> {
  for (let attempt = 0; ; attempt++) {
    const completionId = `cpl_one${attempt}`;
    const sampling = byTokens({ completionId }).catch((error: unknown) => error as Error);
    await running();
    await engine.pause('abort', never);
    const reply = await sampling;
    if (!(reply instanceof Error)) sim.updateWeights('v1');
    engine.weightsMayHaveChanged();
    await engine.resume(never);
    if (!(reply instanceof Error)) return { reply, completionId };
    expect(reply).toMatchObject({ code: 'engine_unavailable' });
  }
}

describe.each([false, true])('an update during a reply, by /generate: %s', (forceNative) => {
  it('loses nothing when it interrupts the reply: every token has its version', async () => {
    await start({ tokenDelayMs: 1 }, forceNative);
    const first = await brokenOff();
    const { completionId: one } = first;
    expect(first.reply).toMatchObject({ finishReason: 'abort', stop: null });
    const cut = first.reply.responseIds.length;
    const whole = await byTokens({ completionId: 'cpl_two', resumeFrom: first.reply });
    const [before] = sim.ledger.entries({ requestId: one });
    const [two] = sim.ledger.entries({ requestId: 'cpl_two' });
    expect([...whole.responseIds]).toEqual([...(before?.response_ids ?? []), ...(two?.response_ids ?? [])]);
    expect(two?.prompt_ids).toEqual([...whole.promptIds, ...first.reply.responseIds]);
    expect(whole.versionSpans).toEqual([
      { version: 'v0', start: 0, end: cut },
      { version: 'v1', start: cut, end: whole.responseIds.length },
    ]);
    expect(whole).toMatchObject({ finishReason: 'stop', message: { content: expect.stringContaining('at last.') } });
    expect(whole.message.reasoning_content?.length).toBeGreaterThan(400);
  });

  it('leaves spans of both versions when it keeps the reply', async () => {
    await start({ tokenDelayMs: 1 }, forceNative);
    const sampling = byTokens({ completionId: 'cpl_one' });
    await sampled();
    await engine.pause('keep', never);
    sim.updateWeights('v1');
    await engine.resume(never);
    const reply = await sampling;
    expect(reply.versionSpans).toEqual(sim.ledger.entries({ requestId: 'cpl_one' })[0]?.version_spans);
    expect(reply.versionSpans.map(({ version }) => version)).toEqual(['v0', 'v1']);
  });
});

describe('replies of a faulty server', () => {
  const faultyReplies: [FaultKind, string][] = [
    ['http_400_context', 'engine_rejected'],
    ['http_429', 'engine_unavailable'],
    ['http_500', 'engine_error'],
    ['http_503', 'engine_unavailable'],
    ['reset_before', 'engine_unavailable'],
    ['reset_mid', 'engine_error'],
    ['missing_ids', 'engine_error'],
    ['logprobs_length', 'engine_error'],
    ['logprob_nan', 'engine_error'],
    ['logprob_null', 'engine_error'],
    ['logprob_positive', 'engine_error'],
    ['usage_mismatch', 'engine_error'],
    ['error_body_200', 'engine_error'],
    ['garbage', 'engine_error'],
    ['model_changed', 'engine_error'],
    ['foreign_ids', 'engine_error'],
    ['off_by_one_logprobs', 'engine_error'],
    ['dies_mid_stream', 'engine_error'],
  ];
  it.each(
    faultyReplies.flatMap(([kind, code]) =>
      (['chat', 'input_ids', 'generate'] as const).map((way) => [kind, way, code] as const),
    ),
  )('that have the fault %s make a call by %s reject with %s', async (kind, way, code) => {
    await start({}, way === 'generate');
    const ids = prompted([...(await promptIds())]);
    await engine.generate(
      askRequest({ completionId: 'cpl_first', messageTexts: ['{"role":"user","content":"b"}'] }),
      never,
    );
    sim.setFaults([{ kind, ...(kind === 'http_400_context' ? {} : { times: 1 }) }]);
    const reply = engine.generate(askRequest({ prompt: way === 'chat' ? null : ids, maxTokens: null }), never);
    await expect(reply).rejects.toMatchObject({ code });
    sim.setFaults([]);
  });
});

it.each([false, true])('a reply that reports another prompt is rejected, by /generate: %s', async (forceNative) => {
  await start({}, forceNative);
  sim.setFaults([{ kind: 'echo_other_prompt' }]);
  await expect(byTokens()).rejects.toMatchObject({ code: 'engine_error', message: expect.stringMatching(/prompted/) });
});

it('the prefix cache is shared only within one salt', async () => {
  await start();
  const cached = async (policyVersion: string) => (await byTokens({ policyVersion })).usage.cached_tokens;
  const messageTexts = [JSON.stringify({ role: 'user', content: 'words '.repeat(60) })];
  const { completionId, sessionId, pool, toolsText } = askRequest();
  const ids = await engine.render(
    { completionId, sessionId, pool, messageTexts, toolsText, generationPrompt: true },
    never,
  );
  const salted = (policyVersion: string) =>
    engine.generate(askRequest({ prompt: prompted([...ids]), policyVersion }), never);
  expect((await salted('v1')).usage.cached_tokens).toBe(0);
  expect((await salted('v1')).usage.cached_tokens).toBeGreaterThan(0);
  expect((await salted('v2')).usage.cached_tokens).toBe(0);
  expect(await cached('v3')).toBe(0);
});

it('a server that refuses unknown fields is sent none', async () => {
  for (const sglangAge of ['meta_info', 'token_ids', 'sglext', 'stream_ids'] as const) {
    if (sglangAge !== 'meta_info') await Promise.all([engine.close(), sim.close()]);
    await start({ strict: true, sglangAge });
    expect(await byTokens({ policyVersion: 's' })).toMatchObject({ finishReason: 'stop' });
    expect(engine.info().capabilities).toMatchObject({ token_input: 'input_ids', cache_salt: true });
  }
});
