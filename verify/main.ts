import { type Program, runNamed } from '../tools/programs.ts';

/** Every verification program, by the name that `npm run verify -- NAME` takes. */
const PROGRAMS: Readonly<Record<string, Program>> = {
  install: {
    summary: 'installs the optional tools that some tests need: an S3 server, Helm, validators',
    load: () => import('./services/main.ts'),
  },
  all: {
    summary: 'runs the other programs one after the other, and prints a table; continues where it was interrupted',
    load: () => import('./all.ts'),
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
  dashboard: {
    summary: 'opens every view of the dashboard in Chromium: content, accessibility, errors, hostile output',
    load: () => import('./dashboard/main.ts'),
  },
  docs: {
    summary: 'checks the documentation: every link, every command that can run here, and code and data in the pages',
    load: () => import('./docs/main.ts'),
  },
  datasets: {
    summary: 'exports sessions as data sets, reads them with pyarrow, DuckDB and datasets, and imports them',
    load: () => import('./datasets/main.ts'),
  },
  envs: {
    summary: 'checks every environment, and plays it and every agent through floe with the simulated engine',
    load: () => import('./envs/main.ts'),
  },
  examples: {
    summary: 'runs the commands of the recipes in examples/ and of the skill in skills/',
    load: () => import('./examples/main.ts'),
  },
  notebooks: {
    summary: 'runs the notebooks of examples/notebooks',
    load: () => import('./notebooks/main.ts'),
  },
  packages: {
    summary: 'makes the packages of a release, installs each into an empty folder and uses it',
    load: () => import('./packages/main.ts'),
  },
  faults: {
    summary: 'pauses, cuts off, starves and misleads a running service, over SQLite and PostgreSQL',
    load: () => import('./faults/main.ts'),
  },
  soak: {
    summary: 'runs an hour of mixed load with faults and checks memory and files for leaks',
    load: () => import('./faults/soak.ts'),
  },
  generate: {
    summary:
      'kills floe generate, server and gateway at random, and compares the output with that of a run without kills',
    load: () => import('./generate/main.ts'),
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
  learn: {
    summary: 'trains the simulated policy on the sessions of two harnesses, and checks that damaged data prevents it',
    load: () => import('./learn/main.ts'),
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
  batches: {
    summary: 'kills server, gateway and trainer while batches are handed out',
    load: () => import('./batches/main.ts'),
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
  worlds: {
    summary: 'plays environments of servers of OpenEnv, NeMo Gym and the Open Reward Standard, which it installs',
    load: () => import('./worlds/main.ts'),
  },
  runtimes: {
    summary: 'the contract of every runtime, what each enforces, and how fast it starts; installs what it can',
    load: () => import('./runtimes/main.ts'),
  },
  'learn-real': {
    summary: 'a real transformer learns a task with TRL and AReaL, and every trained token is recomputed with PyTorch',
    load: () => import('./learn-real/main.ts'),
  },
  harbor: {
    summary:
      'runs the Harbor tasks of examples/harbor in Docker, Podman and Apptainer with reference solutions, without an agent, and with harnesses',
    load: () => import('./harbor/main.ts'),
  },
  trainers: {
    summary: 'lets trainers read rows that floe exported, and take optimizer steps with them; installs their packages',
    load: () => import('./trainers/main.ts'),
  },
  'trainer-pages': {
    summary: 'runs the commands of the pages of docs/trainers, from an empty folder to the first optimizer step',
    load: () => import('./trainer-pages/main.ts'),
  },
  registrations: {
    summary: 'the agent server for NeMo Gym and the environments for verifiers and OpenEnv, with their own packages',
    load: () => import('./registrations/main.ts'),
  },
  'lock-harness': {
    summary: 'writes the lock of a harness under harness-locks/',
    load: () => import('../tools/lock-harness.ts'),
  },
};

await runNamed('verify', PROGRAMS);
