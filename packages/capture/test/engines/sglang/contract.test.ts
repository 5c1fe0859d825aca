import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { type SimConfigInput, startSim } from '@floe-rl/sim';
import { createSglangEngine } from '../../../src/engines/sglang/engine.ts';
import { type ContractSubject, contractScenarios, engineContract } from '../contract.ts';

/** Starts a simulated SGLang server with these settings and connects an engine adapter to it. */
async function subject(settings: SimConfigInput, forceNative = false): Promise<ContractSubject> {
  const sim = await startSim({ face: 'sglang', scenarios: contractScenarios, ...settings });
  const spec = engineSpecSchema.parse({ kind: 'sglang', base_url: sim.url, api_key: 'secret-of-the-contract' });
  const engine = await createSglangEngine(spec, { clock: systemClock }, { forceNative });
  const close = async (): Promise<void> => {
    await engine.close();
    await sim.close();
  };
  return { spec, engine, close, ledger: sim.ledger };
}

for (const sglangAge of ['meta_info', 'token_ids', 'sglext', 'stream_ids'] as const) {
  engineContract(`SGLang of age ${sglangAge}`, () => subject({ sglangAge }));
}
engineContract('SGLang whose template opens thinking', () => subject({ templateMode: 'open_think' }));
engineContract('SGLang by /generate', () => subject({}, true));
engineContract('SGLang with raw log-probabilities', () => subject({ logprobsMode: 'raw_logprobs' }));
engineContract('SGLang by /generate whose template opens thinking', () =>
  subject({ templateMode: 'open_think' }, true),
);
engineContract('SGLang by /generate whose template drops thinking', () =>
  subject({ templateMode: 'strip_thinking' }, true),
);
