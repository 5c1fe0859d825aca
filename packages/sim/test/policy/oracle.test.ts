import { describe, expect, it } from 'vitest';
import { TEMPLATE_MODES } from '../../src/template.ts';
import { postJson, simStarter, TOOLS, USER } from '../sim-client.ts';

const start = simStarter();

describe('the oracle', () => {
  it.each(TEMPLATE_MODES)('recomputes the ledger of every route with the template %s', async (templateMode) => {
    const sim = await start({ templateMode, scaleOut: true });
    const sampling = { temperature: 0.7, top_p: 0.9, seed: 2 };
    const chat = { messages: [USER], tools: TOOLS, ...sampling };
    const rendered = await postJson<object>(`${sim.url}/v1/chat/completions/render`, chat);
    const prompt = (rendered.body as { token_ids: number[] }).token_ids;
    const calls: Record<string, object> = {
      '/v1/chat/completions': { ...chat, tool_choice: 'required' },
      '/v1/completions': { prompt, max_tokens: 100, ...sampling },
      '/inference/v1/generate': rendered.body,
    };
    for (const [path, body] of Object.entries(calls)) {
      expect((await postJson(`${sim.url}${path}`, body)).status).toBe(200);
    }
    const entries = sim.ledger.entries();
    expect(entries.map(({ endpoint }) => endpoint)).toEqual(Object.keys(calls));
    for (const entry of entries) {
      const { raw, processed } = sim.oracle(entry.prompt_ids, entry.response_ids, entry.version_spans, entry.params);
      expect(raw).toHaveLength(entry.raw_logprobs.length);
      for (const [i, logprob] of raw.entries()) expect(entry.raw_logprobs[i]).toBeCloseTo(logprob, 9);
      for (const [i, logprob] of processed.entries()) expect(entry.processed_logprobs[i]).toBeCloseTo(logprob, 9);
    }
  });
});
