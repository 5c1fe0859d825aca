// Runs the simulated engine in a separate process, so that its CPU time does not count as floe's. The only argument is its config as JSON.
import { startSim } from '@floe-rl/sim';
import { cpuUs, serveBench } from '../child.ts';

const sim = await startSim(JSON.parse(process.argv[2] ?? '{}'));
serveBench({ url: sim.url }, { usage: () => ({ cpuMs: cpuUs() / 1000 }) }, () => sim.close());
