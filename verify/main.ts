import { type Program, runNamed } from '../tools/programs.ts';

/** Every verification program, by the name that `npm run verify -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  install: {
    summary: 'installs the optional tools that some tests need: an S3 server, Helm, validators',
    load: () => import('./services/main.ts'),
  },
  simulate: {
    summary: 'simulates clusters on a virtual clock under seeded faults and checks every promise',
    load: () => import('./control-plane/main.ts'),
  },
};

await runNamed('verify', PROGRAMS);
