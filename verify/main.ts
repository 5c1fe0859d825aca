import { type Program, runNamed } from '../tools/programs.ts';
import { PROGRAMS } from './programs.ts';

/** Returns the program to start. For a group, it runs the group's programs one after the other. */
function programOf([name, program]: readonly [string, (typeof PROGRAMS)[string]]): [string, Program] {
  if (!('parts' in program)) return [name, program];
  const load = async (): Promise<void> => (await import('./sequence.ts')).runSequence(name, [name]);
  return [name, { ...program, load }];
}

await runNamed('verify', {
  all: {
    summary: 'runs the programs below one after the other, and prints a table; continues where it was interrupted',
    load: async () => (await import('./sequence.ts')).runAll(),
  },
  ...Object.fromEntries(Object.entries(PROGRAMS).map(programOf)),
});
