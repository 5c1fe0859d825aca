/** Arguments of a program. */
export type Form = readonly string[];

/** A verification program. */
export type Part = {
  readonly summary: string;
  /** Loads the module, which starts the program. */
  readonly load: () => Promise<unknown>;
  /** The arguments of the program's short form; `null` when runs of several programs with `--quick` leave the program out. */
  readonly quick: Form | null;
  /** The arguments of the program's full form; `null` when runs of several programs leave the program out. */
  readonly full: Form | null;
};

/** Programs that have a subject in common. */
export type Group = { readonly summary: string; readonly parts: Readonly<Record<string, Part>> };

const QUICK = ['--quick'];

/** All verification programs by their subject, in the order in which `all` runs them: the subjects that find most come first. */
export const PROGRAMS: Readonly<Record<string, Group | Part>> = {
  tools: {
    summary: 'what maintainers and the other programs need',
    parts: {
      install: {
        summary: 'installs the optional tools that some tests need: an S3 server, Helm, validators',
        load: () => import('./services/main.ts'),
        quick: [],
        full: [],
      },
      'lock-harness': {
        summary: 'writes the lock of a harness under harness-locks/',
        load: () => import('../tools/lock-harness.ts'),
        quick: null,
        full: null,
      },
      comments: {
        summary: 'draws comments at random for a reader who does not know the project',
        load: () => import('./comments/main.ts'),
        quick: null,
        full: null,
      },
    },
  },
  tests: {
    summary: 'runs the whole suite of tests, as npm test -- --all does',
    load: () => {
      process.argv.push('--all');
      return import('../tools/test.ts');
    },
    quick: null,
    full: [],
  },
  tokens: {
    summary: 'every token that a trainer gets is the one that the engine sampled',
    parts: {
      golden: {
        summary: 'every golden case in every engine mode',
        load: () => import('./golden/main.ts'),
        quick: [],
        full: [],
      },
      fidelity: {
        summary: 'compares every token that floe hands to a trainer with the ledger of the engine that sampled it',
        load: () => import('./fidelity/main.ts'),
        quick: ['--tokens', '10000'],
        full: ['--tokens', '200000'],
      },
    },
  },
  resilience: {
    summary: 'nothing is lost or doubled when processes, networks, disks and hosts fail',
    parts: {
      simulate: {
        summary: 'simulates clusters on a virtual clock under seeded faults and checks every promise',
        load: () => import('./control-plane/main.ts'),
        quick: ['--seeds', '100', '--planted'],
        full: ['--seeds', '1500', '--planted'],
      },
      crash: {
        summary: 'kills the service before its n-th write, sync or send for every n, and at random moments',
        load: () => import('./faults/crash.ts'),
        quick: ['--points', '2', '--kills', '3', '--sessions', '20'],
        full: [],
      },
      faults: {
        summary: 'pauses, cuts off, starves and misleads a running service, over SQLite and PostgreSQL',
        load: () => import('./faults/main.ts'),
        quick: ['--quick', '--store', 'sqlite', '--suite', 'S3', '--suite', 'S18'],
        full: [],
      },
      batches: {
        summary: 'kills server, gateway and trainer while batches are handed out',
        load: () => import('./faults/batches.ts'),
        quick: QUICK,
        full: [],
      },
      generate: {
        summary:
          'kills floe generate, server and gateway at random, and compares the output with that of a run without kills',
        load: () => import('./faults/generate.ts'),
        quick: QUICK,
        full: [],
      },
      cluster: {
        summary: 'runs a Slurm of three nodes on this machine and kills a node and a replica',
        load: () => import('./cluster/main.ts'),
        quick: ['--sessions', '30', '--harness', 'shell'],
        full: [],
      },
      soak: {
        summary: 'runs an hour of mixed load with faults and checks memory and files for leaks',
        load: () => import('./faults/soak.ts'),
        quick: null,
        full: null,
      },
    },
  },
  compatibility: {
    summary: 'agents, SDKs, clients, engines and training systems of others work with floe as they are',
    parts: {
      matrix: {
        summary: 'every harness, unchanged, in every dialect that it speaks, through every kind of trouble',
        load: () => import('./matrix/main.ts'),
        quick: ['--samples', '0', '--cell', 'edit', '--cell', 'subagent'],
        full: [],
      },
      conformance: {
        summary: 'official SDKs and agent frameworks, which it installs, drive the proxy',
        load: () => import('./conformance/main.ts'),
        quick: ['--mode=tokens'],
        full: [],
      },
      engines: {
        summary: 'the contract of engine adapters against real servers, which it installs',
        load: () => import('./real-engines/main.ts'),
        quick: ['llama_cpp'],
        full: [],
      },
      clients: {
        summary: 'makes the calls of clients of Polar and ProRL Agent, and reads the replies with their models',
        load: () => import('./clients/main.ts'),
        quick: [],
        full: [],
      },
      registrations: {
        summary:
          'the agent server for NeMo Gym and the environments for verifiers and OpenEnv, with their own packages',
        load: () => import('./registrations/main.ts'),
        quick: null,
        full: [],
      },
    },
  },
  attacks: {
    summary: 'agents that cheat or attack, and clients that send broken requests, beside honest ones',
    parts: {
      hostile: {
        summary: 'agents that cheat, break out of their sandbox or use up resources, beside honest sessions',
        load: () => import('./hostile/main.ts'),
        quick: QUICK,
        full: [],
      },
      cheats: {
        summary: 'agents that try to get a reward without doing their work, and honest ones, in three back ends',
        load: () => import('./cheats/main.ts'),
        quick: QUICK,
        full: [],
      },
      fuzz: {
        summary: 'sends broken and hostile requests through the proxy',
        load: () => import('./fuzz/main.ts'),
        quick: QUICK,
        full: [],
      },
    },
  },
  sandboxes: {
    summary: 'what each runtime promises and prevents',
    parts: {
      escape: {
        summary: 'agents that try to leave their sandbox or use up resources, in every runtime of this machine',
        load: () => import('./escape/main.ts'),
        quick: ['--parallel', '0', '--only', 'bubblewrap'],
        full: [],
      },
      transfers: {
        summary:
          'uploads, downloads, artifacts, patches and archives with hostile paths and content, in three back ends',
        load: () => import('./transfers/main.ts'),
        quick: null,
        full: [],
      },
      runtimes: {
        summary: 'the contract of every runtime, what each enforces, and how fast it starts; installs what it can',
        load: () => import('./runtimes/main.ts'),
        quick: null,
        full: [],
      },
    },
  },
  environments: {
    summary: 'worlds, tasks and graders, those of floe and those of others',
    parts: {
      envs: {
        summary: 'checks every environment, and plays it and every agent through floe with the simulated engine',
        load: () => import('./envs/main.ts'),
        quick: QUICK,
        full: [],
      },
      worlds: {
        summary: 'plays environments of servers of OpenEnv, NeMo Gym and the Open Reward Standard, which it installs',
        load: () => import('./worlds/main.ts'),
        quick: null,
        full: [],
      },
      swebench: {
        summary: 'grades logs of test runs with the official package of SWE-bench, and compares the verdicts',
        load: () => import('./swebench/main.ts'),
        quick: null,
        full: [],
      },
      harbor: {
        summary: 'runs the Harbor tasks of examples/harbor in Docker, Podman and Apptainer, with and without agents',
        load: () => import('./harbor/main.ts'),
        quick: ['--only', 'docker', '--samples', '1'],
        full: [],
      },
    },
  },
  dashboard: {
    summary: 'opens every view of the dashboard in Chromium: content, accessibility, errors, hostile output',
    load: () => import('./dashboard/main.ts'),
    quick: QUICK,
    full: [],
  },
  pages: {
    summary: 'what the documentation says is true: links, names, code, and commands that are run',
    parts: {
      docs: {
        summary:
          'checks the documentation: every link, every command that can run here, and code and data in the pages',
        load: () => import('./docs/main.ts'),
        quick: QUICK,
        full: [],
      },
      examples: {
        summary: 'runs the commands of the recipes in examples/ and of the skill in skills/',
        load: () => import('./pages/examples.ts'),
        quick: [],
        full: [],
      },
      notebooks: {
        summary: 'runs the notebooks of examples/notebooks',
        load: () => import('./pages/notebooks.ts'),
        quick: null,
        full: [],
      },
      'swebench-guide': {
        summary: 'runs the commands of the guide to SWE-bench, from a row of Django to rewards with traces',
        load: () => import('./swebench/guide.ts'),
        quick: [],
        full: [],
      },
      'trainer-pages': {
        summary: 'runs the commands of the pages of docs/trainers, from an empty folder to the first optimizer step',
        load: () => import('./pages/trainers.ts'),
        quick: null,
        full: [],
      },
    },
  },
  releases: {
    summary: 'what is published: packages, the image and data sets',
    parts: {
      packages: {
        summary: 'makes the packages of a release, installs each into an empty folder and uses it',
        load: () => import('./packages/main.ts'),
        quick: QUICK,
        full: [],
      },
      datasets: {
        summary: 'exports sessions as data sets, reads them with pyarrow, DuckDB and datasets, and imports them',
        load: () => import('./datasets/main.ts'),
        quick: QUICK,
        full: [],
      },
    },
  },
  training: {
    summary: 'trainers read what floe exports, and policies learn from it',
    parts: {
      trainers: {
        summary:
          'lets trainers read rows that floe exported, and take optimizer steps with them; installs their packages',
        load: () => import('./trainers/main.ts'),
        quick: ['--quick', '--rows', '100', '--only', 'slime', '--only', 'prime_rl', '--only', 'nemo_rl'],
        full: [],
      },
      learn: {
        summary:
          'trains the simulated policy on the sessions of two harnesses, and checks that damaged data prevents it',
        load: () => import('./learn/main.ts'),
        quick: null,
        full: [],
      },
      'learn-real': {
        summary:
          'a real transformer learns a task with TRL and AReaL, and every trained token is recomputed with PyTorch',
        load: () => import('./learn-real/main.ts'),
        quick: null,
        full: [],
      },
    },
  },
  mutants: {
    summary: 'the tests notice defects',
    parts: {
      mutations: {
        summary: 'plants defects in capture, graph and builders, and checks that the tests catch each',
        load: () => import('./mutations/main.ts'),
        quick: null,
        full: [],
      },
      stryker: {
        summary: 'changes single expressions of the code, drawn at random, and checks that a test fails for each',
        load: () => import('./stryker/main.ts'),
        quick: null,
        full: null,
      },
    },
  },
};

/** Returns the programs of a group by name, or the program itself. */
export function partsOf(name: string): (readonly [string, Part])[] {
  const program = PROGRAMS[name];
  if (program === undefined) return [];
  return 'parts' in program ? Object.entries(program.parts) : [[name, program]];
}
