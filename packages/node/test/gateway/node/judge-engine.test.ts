import { createEnginePools } from '@floe-rl/capture';
import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { parseScenarios, startSim } from '@floe-rl/sim';
import { afterAll, describe, expect, it } from 'vitest';
import { judgeEngine } from '../../../src/gateway/node/judge-engine.ts';

const closing: (() => Promise<unknown>)[] = [];
afterAll(async () => {
  for (const close of closing.reverse()) await close();
});

describe('the engines of a judge', () => {
  it('sample a reply of the named pool with the parameters of the request', async () => {
    const rules = [{ reply: [{ text: '{"score": 7}' }] }];
    const sim = await startSim({
      scenarios: parseScenarios({ scenarios: [{ name: 'judge', rules }] }, 'the scenarios'),
    });
    closing.push(() => sim.close());
    const spec = engineSpecSchema.parse({ base_url: sim.url, pool: 'judge' });
    const pools = await createEnginePools([spec], { clock: systemClock });
    closing.push(() => pools.close());
    const request = {
      ...{ pool: 'judge', maxTokens: 64, temperature: 0.5, seed: 3, callId: '1.judge.0', sessionId: 'ses_9' },
      messages: [
        { role: 'system' as const, content: 'You grade.' },
        { role: 'user' as const, content: 'Grade it.' },
      ],
    };
    const reply = await judgeEngine(pools).sample(request, new AbortController().signal);
    const [sampled] = sim.ledger.entries().slice(-1);
    expect(reply).toMatchObject({ text: '{"score": 7}', engineId: pools.info()[0]?.engine_id });
    expect(sampled).toMatchObject({ params: { temperature: 0.5 } });
    expect([reply.promptTokens, reply.completionTokens]).toEqual([
      sampled?.prompt_ids.length,
      sampled?.response_ids.length,
    ]);
  });
});
