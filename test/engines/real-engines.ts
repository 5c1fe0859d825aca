import { systemClock } from '../../src/core/clock.ts';
import { createEngine } from '../../src/engines/create.ts';
import { engineSpecSchema } from '../../src/schema/index.ts';
import { engineContract } from './contract.ts';

/** Run by `npm run engines:real` alone, which starts the servers and names them here: a JSON array of `{name, spec}`. */
const servers = JSON.parse(process.env.FLOE_REAL_ENGINES ?? '[]') as { name: string; spec: object }[];

for (const { name, spec: input } of servers) {
  engineContract(name, async () => {
    const spec = engineSpecSchema.parse(input);
    const engine = await createEngine(spec, { clock: systemClock });
    return { spec, engine, close: () => engine.close() };
  });
}
