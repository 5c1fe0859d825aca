import { systemClock } from '@floe-rl/core';
import { engineSpecSchema } from '@floe-rl/core/schema';
import { type SimConfigInput, startSim } from '@floe-rl/sim';
import { createEngine } from '../../../src/engines/engine-kinds.ts';
import { type ContractSubject, contractScenarios, engineContract } from '../contract.ts';

async function subject(settings: SimConfigInput, token_ids: 'off' | 'required'): Promise<ContractSubject> {
  const sim = await startSim({ scenarios: contractScenarios, ...settings });
  const spec = engineSpecSchema.parse({ kind: 'openai', base_url: sim.url, api_key: 'key-of-the-engine', token_ids });
  const engine = await createEngine(spec, { clock: systemClock });
  const close = async (): Promise<void> => {
    await engine.close();
    await sim.close();
  };
  // SGLang finds the id of a call only in a field of its own, which this adapter does not send.
  return settings.face === 'sglang' ? { spec, engine, close } : { spec, engine, ledger: sim.ledger, close };
}

engineContract('an API without tokens', () => subject({}, 'off'));
engineContract('an API made from vLLM that returns tokens', () => subject({}, 'required'));
engineContract('an API made from vLLM with raw log-probabilities', () =>
  subject({ logprobsMode: 'raw_logprobs' }, 'required'),
);
engineContract('an API made from SGLang that returns tokens', () =>
  subject({ face: 'sglang', sglangAge: 'token_ids' }, 'required'),
);
