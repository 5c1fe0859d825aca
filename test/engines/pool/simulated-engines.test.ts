import { afterEach, describe, expect, it } from 'vitest';
import { systemClock } from '../../../src/core/clock.ts';
import type { ReplyDelta } from '../../../src/core/reply.ts';
import type { EnginePools } from '../../../src/engines/pool/engine-pools.ts';
import { createEnginePools } from '../../../src/engines/pool/managed-engine-pools.ts';
import { engineSpecSchema } from '../../../src/schema/index.ts';
import { parseScenarios, type SimServer, startSim } from '../../../src/sim/index.ts';
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

  const start = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) sims.push(await startSim({ scenarios, scaleOut: true, tokenDelayMs: 1, seed: i }));
    const specs = sims.map(({ url }, i) => engineSpecSchema.parse({ base_url: url, engine_id: `sim-${i}` }));
    pool = await createEnginePools(specs, { clock: systemClock });
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
      .flatMap((sim) => sim.ledger.entries())
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

  it('returns the metrics of all engines', async () => {
    await start(2);
    await pool.generate({ ...REQUEST, messageTexts }, never());
    const text = await pool.metrics();
    expect(text.match(/^# TYPE vllm:generation_tokens_total counter$/gm)).toHaveLength(1);
    expect(text.match(/^vllm:generation_tokens_total\{engine_id="sim-[01]",pool="default",/gm)).toHaveLength(2);
  });
});
