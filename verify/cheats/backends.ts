// The back ends with which the cheats run, and how each is started on this machine.

import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { systemClock } from '@floe-rl/core';
import { createRuntimeProviders, createSpawner } from '@floe-rl/sandbox';
import { repositoryRoot } from '../../tools/repository.ts';
import { dockerMissing, startDockerDaemon } from '../services/docker-daemon.ts';
import { findTool } from '../services/tools.ts';
import { APPTAINER_VARIABLE, asUnprivilegedUser, unprivilegedMissing } from '../services/unprivileged.ts';
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
  const why = await probe('bubblewrap', setup.stateDir);
  return why ?? runRound({ ...setup, backend: 'bubblewrap', gateway: {} }, show);
}

/** Resolves to the reason why a back end does not work for this user; `null` when it does. */
async function probe(name: RoundOptions['backend'], stateDir: string, command?: string): Promise<string | null> {
  const spawner = await createSpawner();
  try {
    const options = command === undefined ? {} : { apptainerCommand: command };
    const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir, ...options }).get(name);
    const problem = await provider?.probe();
    return problem ? `${problem.problem}: ${problem.remedy}` : null;
  } finally {
    await spawner.close();
  }
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
  const command = asUnprivilegedUser([process.execPath, program, JSON.stringify(setup)]);
  try {
    const child = spawn(command.program, command.args, {
      ...{ cwd: repositoryRoot(), env: command.env, stdio: ['ignore', 'pipe', 'inherit'] },
    });
    return JSON.parse(await text(child.stdout as NodeJS.ReadableStream as never)) as Row[] | string;
  } finally {
    command.remove();
  }
}

export async function runApptainerHere(setup: Setup, show: (left: number) => void): Promise<Row[] | string> {
  const command = process.env[APPTAINER_VARIABLE] ?? findTool('apptainer');
  if (command === null) return 'Apptainer is missing: npm run verify -- install';
  const why = await probe('apptainer', setup.stateDir, command);
  return why ?? runRound({ ...setup, backend: 'apptainer', gateway: { apptainer_command: command } }, show);
}
