import { type Program, runNamed } from '../tools/programs.ts';

/** Every bench, by the name that `npm run bench -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  spans: { summary: 'CPU time and start-up time of a recorded span', load: () => import('./spans.ts') },
};

await runNamed('bench', PROGRAMS);
