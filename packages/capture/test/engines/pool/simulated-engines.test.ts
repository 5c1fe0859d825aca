import { engineSpecSchema } from '@floe-rl/core/schema';
import { parseScenarios, type SimOptions, type SimServer, startSim } from '@floe-rl/sim';
import { afterEach, describe, expect, it } from 'vitest';
import { SkippingClock } from '../../../../../test/golden/skipping-clock.ts';
import type { EnginePools, PooledReply } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import type { ReplyDelta } from '../../../src/reply.ts';
import { never, REQUEST } from './toy-engine.ts';

const words = Array.from({ length: 40 }, (_, i) => `word ${i} of a longer reply`).join(', ');
const scenarios = parseScenarios(
  { scenarios: [{ name: 'long', rules: [{ reply: [{ text: words }] }] }] },
  'the scenario of this test',
);
const messageTexts = [JSON.stringify({ role: 'user', content: 'Tell me.' })];

describe('a pool of simulated engines', () => {
  const sims: SimServer[] = [];
  let pool: EnginePools;
  const clock = new SkippingClock(() => 0);

  const start = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) sims.push(await startSim({ scenarios, scaleOut: true, tokenDelayMs: 1, seed: i }));
    const specs = sims.map(({ url }, i) => engineSpecSchema.parse({ base_url: url, engine_id: `sim-${i}` }));
    pool = await createEnginePools(specs, { clock });
  };

  afterEach(async () => {
    await pool.close();
    await Promise.all(sims.splice(0).map((sim) => sim.close()));
  });

  /** Pauses the engines, updates their weights to v1 and resumes them. */
  const update = async (): Promise<void> => {
    await pool.pause({ mode: 'abort', whilePaused: 'reject' });
    for (const sim of sims) sim.updateWeights('v1');
    pool.setPolicyVersion('v1');
    await pool.resume();
  };

  const sampledIds = (): number[] =>
    sims
      .flatMap((sim) => sim.ledger.entries({ sessionId: REQUEST.sessionId }))
      .sort((a, b) => a.started_ms - b.started_ms)
      .flatMap(({ response_ids }) => response_ids);

  it('resumes a reply that an update interrupted, with the new weights', async () => {
    await start(2);
    const ids = await pool.render({ ...REQUEST, messageTexts, generationPrompt: true }, never());
    const prompt = { ids, json: Buffer.from(ids.join(',')) };
    const call = pool.generate({ ...REQUEST, messageTexts, prompt }, never());
    while (sims.every((sim) => sim.engine.running === 0)) await new Promise((resolve) => setImmediate(resolve));
    await update();
    const { reply } = await call;
    expect(reply).toMatchObject({ finishReason: 'stop', promptIds: ids, message: { content: words } });
    expect(reply.versionSpans.at(-1)).toMatchObject({ version: 'v1', end: reply.responseIds.length });
    expect([...reply.responseIds]).toEqual(sampledIds());
  });

  it('completes the stream of a reply that an update interrupted', async () => {
    await start(2);
    let text = '';
    let begin = (): void => {};
    const resumeFrom = new Promise<void>((resolve) => (begin = resolve));
    const listener = {
      started: () => {},
      delta: (delta: ReplyDelta) => {
        if (delta.kind === 'text') text += delta.text;
        begin();
      },
    };
    const call = pool.generate({ ...REQUEST, messageTexts, listener }, never());
    await resumeFrom;
    await update();
    const { reply } = await call;
    expect(reply).toMatchObject({ finishReason: 'stop', message: { content: words } });
    expect(words.startsWith(text)).toBe(true);
    expect(text.length).toBeLessThan(words.length);
    expect(reply.versionSpans.length).toBeGreaterThan(1);
    expect([...reply.responseIds]).toEqual(sampledIds());
  });

  const FACES = [
    { name: 'vLLM, chat', kind: 'vllm', sim: {}, tokens: false },
    { name: 'vLLM, tokens', kind: 'vllm', sim: { scaleOut: true }, tokens: true },
    { name: 'SGLang, chat', kind: 'sglang', sim: { face: 'sglang' }, tokens: false },
    { name: 'SGLang, tokens', kind: 'sglang', sim: { face: 'sglang' }, tokens: true },
  ] as const;

  /** Starts one simulated engine. Returns a function that samples a reply to a long prompt in the session with the given number. */
  const startFace = async (
    { kind, sim, tokens }: { kind: 'vllm' | 'sglang'; sim: SimOptions; tokens: boolean },
    settings: SimOptions = {},
  ): Promise<(session: number, version: string) => Promise<PooledReply>> => {
    sims.push(await startSim({ scenarios, ...sim, ...settings }));
    pool = await createEnginePools([engineSpecSchema.parse({ kind, base_url: sims[0]?.url })], { clock });
    const texts = [JSON.stringify({ role: 'user', content: 'Tell me more. '.repeat(100) })];
    const ids = tokens ? await pool.render({ ...REQUEST, messageTexts: texts, generationPrompt: true }, never()) : null;
    const prompt = ids === null ? null : { ids, json: Buffer.from(ids.join(',')) };
    return (session, version) => {
      const names = { completionId: `cpl_${version}_${session}`, sessionId: `ses_${session}` };
      return pool.generate({ ...REQUEST, ...names, messageTexts: texts, prompt }, never());
    };
  };

  const theSim = (): SimServer => sims[0] as SimServer;
  const sessions = Array.from({ length: 8 }, (_, session) => session);
  const versionsOf = ({ reply }: PooledReply) => reply.versionSpans.map(({ version }) => version);

  it.each(FACES)('computes the context of calls that a pause held with the new weights: $name', async (face) => {
    const sample = await startFace(face);
    await Promise.all(sessions.map((session) => sample(session, 'v0')));
    await pool.pause({ mode: 'keep', whilePaused: 'hold' });
    const held = sessions.map((session) => sample(session, 'v1'));
    clock.skip(1_000);
    theSim().updateWeights('v1');
    pool.setPolicyVersion('v1');
    await pool.resume();
    const replies = await Promise.all(held);
    expect(replies.map(versionsOf)).toEqual(sessions.map(() => ['v1']));
    for (const session of sessions) {
      const [entry] = theSim().ledger.entries({ requestId: `cpl_v1_${session}` });
      expect(entry?.context_spans.map(({ version }) => version)).toEqual(['v1']);
    }
  });

  it.each(FACES)('records no version when an update without notice leaves old context in use: $name', async (face) => {
    const sample = await startFace(face);
    await sample(0, 'v0');
    theSim().updateWeights('v1');
    const replies = [await sample(0, 'v1'), await sample(0, 'v2')];
    expect(replies.map(versionsOf)).toEqual([[null], ['v1']]);
    const contexts = ['cpl_v1_0', 'cpl_v2_0'].map((requestId) => theSim().ledger.entries({ requestId })[0]);
    expect(contexts.map((entry) => entry?.context_spans[0]?.version)).toEqual(['v0', 'v1']);
  });

  it.each(FACES.filter(({ kind }) => kind === 'vllm'))(
    'records no version for a reply that runs on during a pause, without control routes: $name',
    async (face) => {
      const sample = await startFace(face, { devMode: false, reportVersions: 'none', tokenDelayMs: 1 });
      pool.setPolicyVersion('v1');
      const running = sample(0, 'v1');
      while (theSim().engine.running === 0) await new Promise((resolve) => setImmediate(resolve));
      await pool.pause({ mode: 'keep', whilePaused: 'hold' });
      expect(pool.unpaused).toEqual([
        { engineId: expect.any(String), message: expect.stringMatching(/running on it: 1$/) },
      ]);
      theSim().updateWeights('v2');
      expect(versionsOf(await running)).toEqual([null]);
      expect(pool.unpaused).toEqual([]);
      pool.setPolicyVersion('v2');
      await pool.resume();
      expect(versionsOf(await sample(0, 'v2'))).toEqual(['v2']);
    },
  );

  it('returns the metrics of all engines', async () => {
    await start(2);
    await pool.generate({ ...REQUEST, messageTexts }, never());
    const text = await pool.metrics();
    expect(text.match(/^# TYPE vllm:generation_tokens_total counter$/gm)).toHaveLength(1);
    expect(text.match(/^vllm:generation_tokens_total\{engine_id="sim-[01]",pool="default",/gm)).toHaveLength(2);
  });
});
