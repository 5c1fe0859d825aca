import { type Program, runNamed } from '../tools/programs.ts';

/** Every verification program, by the name that `npm run verify -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  install: {
    summary: 'installs the optional tools that some tests need: an S3 server, Helm, validators',
    load: () => import('./services/main.ts'),
  },
  clients: {
    summary: 'makes the calls of clients of Polar and ProRL Agent, and reads the replies with their models',
    load: () => import('./clients/main.ts'),
  },
  cluster: {
    summary: 'runs a Slurm of three nodes on this machine and kills a node and a replica',
    load: () => import('./cluster/main.ts'),
  },
  comments: {
    summary: 'draws comments at random for a reader who does not know the project',
    load: () => import('./comments/main.ts'),
  },
  crash: {
    summary: 'kills the service before its n-th write, sync or send for every n, and at random moments',
    load: () => import('./faults/crash.ts'),
  },
  examples: {
    summary: 'runs the numbered examples',
    load: () => import('./examples/main.ts'),
  },
  faults: {
    summary: 'pauses, cuts off, starves and misleads a running service, over SQLite and PostgreSQL',
    load: () => import('./faults/main.ts'),
  },
  soak: {
    summary: 'runs an hour of mixed load with faults and checks memory and files for leaks',
    load: () => import('./faults/soak.ts'),
  },
  simulate: {
    summary: 'simulates clusters on a virtual clock under seeded faults and checks every promise',
    load: () => import('./control-plane/main.ts'),
  },
  golden: {
    summary: 'every golden case in every engine mode',
    load: () => import('./golden/main.ts'),
  },
  fidelity: {
    summary: 'compares every token that floe hands to a trainer with the ledger of the engine that sampled it',
    load: () => import('./fidelity/main.ts'),
  },
  mutations: {
    summary: 'plants defects in capture, graph and builders, and checks that the tests catch each',
    load: () => import('./mutations/main.ts'),
  },
  stryker: {
    summary: 'changes single expressions of the code, drawn at random, and checks that a test fails for each',
    load: () => import('./stryker/main.ts'),
  },
  matrix: {
    summary: 'every harness, unchanged, in every dialect that it speaks, through every kind of trouble',
    load: () => import('./matrix/main.ts'),
  },
  fuzz: {
    summary: 'sends broken and hostile requests through the proxy',
    load: () => import('./fuzz/main.ts'),
  },
  hostile: {
    summary: 'agents that cheat, break out of their sandbox or use up resources, beside honest sessions',
    load: () => import('./hostile/main.ts'),
  },
  cheats: {
    summary: 'agents that try to get a reward without doing their work, and honest ones, in three back ends',
    load: () => import('./cheats/main.ts'),
  },
  transfers: {
    summary: 'uploads, downloads, artifacts, patches and archives with hostile paths and content, in three back ends',
    load: () => import('./transfers/main.ts'),
  },
  escape: {
    summary: 'agents that try to leave their sandbox or use up resources, in every runtime of this machine',
    load: () => import('./escape/main.ts'),
  },
  conformance: {
    summary: 'official SDKs and agent frameworks, which it installs, drive the proxy',
    load: () => import('./conformance/main.ts'),
  },
  engines: {
    summary: 'the contract of engine adapters against real servers, which it installs',
    load: () => import('./real-engines/main.ts'),
  },
  swebench: {
    summary:
      'grades logs of test runs with the official package of SWE-bench, which it installs, and compares the verdicts',
    load: () => import('./swebench/main.ts'),
  },
  'swebench-guide': {
    summary: 'runs the commands of the guide to SWE-bench, from a row of Django to rewards with traces',
    load: () => import('./swebench/guide.ts'),
  },
  runtimes: {
    summary: 'the contract of every runtime, what each enforces, and how fast it starts; installs what it can',
    load: () => import('./runtimes/main.ts'),
  },
  harbor: {
    summary:
      'runs the Harbor tasks of examples/harbor in Docker, Podman and Apptainer with reference solutions, without an agent, and with harnesses',
    load: () => import('./harbor/main.ts'),
  },
  'lock-harness': {
    summary: 'writes the lock of a harness under harness-locks/',
    load: () => import('../tools/lock-harness.ts'),
  },
};

await runNamed('verify', PROGRAMS);
