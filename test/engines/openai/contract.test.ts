import { systemClock } from '../../../src/core/clock.ts';
import { createEngine } from '../../../src/engines/engine-kinds.ts';
import { engineSpecSchema } from '../../../src/schema/index.ts';
import { startSim } from '../../../src/sim/index.ts';
import { contractScenarios, engineContract } from '../contract.ts';

engineContract('an API without tokens', async () => {
  const sim = await startSim({ scenarios: contractScenarios });
  const spec = engineSpecSchema.parse({ kind: 'openai', base_url: sim.url, api_key: 'key-of-the-engine' });
  const engine = await createEngine(spec, { clock: systemClock });
  const close = async (): Promise<void> => {
    await engine.close();
    await sim.close();
  };
  return { spec, engine, ledger: sim.ledger, close };
});
