// The back ends that the cheats run in, and how each is started on this machine.

import { join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';
import { runtimeProblem } from '../services/runtime-provider.ts';
import { findTool } from '../services/tools.ts';
import { APPTAINER_VARIABLE, runNode, unprivilegedMissing } from '../services/unprivileged.ts';
import { type RoundOptions, type Row, runRound } from './round.ts';

const IMAGE_NAME = 'floe-cheats';

/** The options of a round that do not depend on the back end. `image` is a directory with a root file system. */
export type Setup = Omit<RoundOptions, 'backend' | 'gateway'> & { readonly stateDir: string };

/** A back end that can run the cheats. `run` resolves to the reason when it cannot on this machine. */
export type Backend = {
  readonly name: RoundOptions['backend'];
  run(setup: Setup, show: (left: number) => void): Promise<Row[] | string>;
};

export const BACKENDS: readonly Backend[] = [
  { name: 'bubblewrap', run: runBubblewrap },
  { name: 'docker', run: runDocker },
  { name: 'apptainer', run: runApptainer },
];

async function runBubblewrap(setup: Setup, show: (left: number) => void): Promise<Row[] | string> {
  const why = await runtimeProblem('bubblewrap', setup.stateDir);
  return why ?? runRound({ ...setup, backend: 'bubblewrap', gateway: {} }, show);
}

async function runDocker(setup: Setup, show: (left: number) => void): Promise<Row[] | string> {
  const why = await dockerMissing();
  if (why !== null) return why;
  const daemon = await startDockerDaemon();
  try {
    await daemon.importImage(IMAGE_NAME, setup.image);
    const gateway = { docker_socket: daemon.socketPath };
    return await runRound({ ...setup, backend: 'docker', image: IMAGE_NAME, gateway }, show);
  } finally {
    await daemon.stop();
  }
}

/** Runs Apptainer as a user without root privileges. Root itself runs the round in a process of such a user. */
async function runApptainer(setup: Setup, show: (left: number) => void): Promise<Row[] | string> {
  if (process.getuid?.() !== 0) return runApptainerHere(setup, show);
  const why = unprivilegedMissing();
  if (why !== null) return why;
  const program = join(repositoryRoot(), '.build', 'verify', 'cheats', 'apptainer-process.js');
  const { stdout } = await runNode([program, JSON.stringify(setup)], { asUser: true });
  return JSON.parse(stdout) as Row[] | string;
}

export async function runApptainerHere(setup: Setup, show: (left: number) => void): Promise<Row[] | string> {
  const command = process.env[APPTAINER_VARIABLE] ?? findTool('apptainer');
  if (command === null) return 'Apptainer is missing: npm run verify -- install';
  const why = await runtimeProblem('apptainer', setup.stateDir);
  return why ?? runRound({ ...setup, backend: 'apptainer', gateway: { apptainer_command: command } }, show);
}
