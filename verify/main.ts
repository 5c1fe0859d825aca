import { type Program, runNamed } from '../tools/programs.ts';

/** Every verification program, by the name that `npm run verify -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {};

await runNamed('verify', PROGRAMS);
