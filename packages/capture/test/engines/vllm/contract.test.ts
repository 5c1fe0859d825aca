import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { type SimOptions, startSim } from '@floe-rl/sim';
import { createVllmEngine } from '../../../src/engines/vllm/engine.ts';
import { contractScenarios, engineContract } from '../contract.ts';

const sims: [string, SimOptions][] = [
  ['vLLM', {}],
  ['vLLM whose template opens thinking', { templateMode: 'open_think' }],
  ['vLLM with ids', { scaleOut: true }],
  [
    'vLLM with ids whose template opens thinking',
    { scaleOut: true, templateMode: 'open_think', derenderEnd: 'hidden' },
  ],
  [
    'an older vLLM with ids whose template drops thinking',
    { scaleOut: true, templateMode: 'strip_thinking', generateStopReason: false, generateLogprobs: 'openai' },
  ],
  ['a strict vLLM with routed experts', { scaleOut: true, strict: true, routedExperts: true }],
  ['vLLM with ids and experts as an object', { scaleOut: true, routedExperts: true, routedExpertsForm: 'object' }],
  ['vLLM with neither versions nor a control plane', { scaleOut: true, devMode: false, reportVersions: 'none' }],
  ['vLLM that reports versions in every reply', { scaleOut: true, reportVersions: 'all' }],
  ['vLLM with raw log-probabilities', { scaleOut: true, logprobsMode: 'raw_logprobs' }],
];

for (const [name, options] of sims) {
  engineContract(name, async () => {
    const sim = await startSim({ scenarios: contractScenarios, ...options });
    const spec = engineSpecSchema.parse({ base_url: sim.url, api_key: 'key-of-the-engine' });
    const engine = await createVllmEngine(spec, { clock: systemClock });
    const close = async (): Promise<void> => {
      await engine.close();
      await sim.close();
    };
    return { spec, engine, ledger: sim.ledger, close };
  });
}
