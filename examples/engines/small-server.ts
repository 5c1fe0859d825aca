// An engine of a small HTTP server, which samples token ids and does nothing else:
//
//   GET  /model   {"name": "…", "context": 4096}
//   GET  /weights {"version": "step-7"}
//   POST /sample  {"tokens": […], "max_tokens": 64, "temperature": 1, "top_p": 1, "end": [2], "stop": []}
//                 {"tokens": […], "logprobs": […], "reason": "end"}
//
// Node 22.18 and newer load this TypeScript file directly. For Node 20, compile it to JavaScript first.
import { defineEngine, type EngineConnection, type EngineKit } from 'floe/plugins';

type Model = { name: string; context: number };
type Sampled = { tokens: number[]; logprobs: number[]; reason: 'end' | 'limit' };

export default defineEngine({
  async connect(spec, kit): Promise<EngineConnection> {
    const { name, context } = (await kit.get('/model')) as Model;
    if (spec.model !== null && spec.model !== name) {
      throw kit.error('engine_error', `it serves ${name} and not ${spec.model}`);
    }
    return {
      model: name,
      contextTokens: context,
      // The server has no field for top_k, min_p and repetition_penalty. floe refuses tasks that set them.
      supports: ['temperature', 'top_p'],
      // The log-probabilities come from the distribution that was sampled from.
      logprobsMode: 'processed',
      policyVersion: () => versionOf(kit),
      async sample({ requestId, ids, maxTokens, sampling, seed, endIds, stop }, signal) {
        const body = {
          id: requestId,
          tokens: ids,
          max_tokens: maxTokens,
          temperature: sampling.temperature,
          top_p: sampling.top_p,
          seed,
          end: endIds,
          stop,
        };
        const { tokens, logprobs, reason } = (await kit.post('/sample', body, signal)) as Sampled;
        return { ids: tokens, logprobs, finish: reason === 'limit' ? 'length' : 'stop' };
      },
    };
  },
});

async function versionOf(kit: EngineKit): Promise<string | null> {
  const { version } = (await kit.get('/weights')) as { version: string | null };
  return version;
}
