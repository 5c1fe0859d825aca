import { type Program, runNamed } from '../tools/programs.ts';

/** Every bench, by the name that `npm run bench -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {};

await runNamed('bench', PROGRAMS);
