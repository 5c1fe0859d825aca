import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { ECOSYSTEMS } from '../registrations/ecosystems.ts';
import { installEnvironment, installedPython } from '../registrations/environments.ts';
import { Child } from '../runner/child.ts';

const PROGRAMS = join(repositoryRoot(), 'verify', 'worlds', 'programs');

/** A server of another system, which is started from that system's own package. */
export type WorldServer = {
  /** Name of the server's settings in `plugins.services`. */
  readonly service: string;
  /** Name of the Python environment with the server's package, and the packages in it. */
  readonly environment: string;
  readonly packages: readonly string[];
  /** Name of the server's program, and its arguments; `null` stands for the path of an empty folder. */
  readonly program: string;
  readonly args: readonly (string | null)[];
};

function packagesOf(name: string): readonly string[] {
  return ECOSYSTEMS.find((ecosystem) => ecosystem.name === name)?.packages ?? [];
}

const NEMO_GYM = { environment: 'nemo_gym', packages: packagesOf('nemo_gym'), program: 'nemo_gym_server.py' };

export const SERVERS: readonly WorldServer[] = [
  {
    service: 'openenv.echo',
    environment: 'openenv',
    packages: packagesOf('openenv'),
    program: 'openenv_echo.py',
    args: [null],
  },
  {
    ...NEMO_GYM,
    service: 'nemo_gym.counter',
    args: ['example_session_state_mgmt', 'StatefulCounterResourcesServer'],
  },
  { ...NEMO_GYM, service: 'nemo_gym.multi_turn', args: ['example_multi_turn_gymnasium', 'ExampleMultiTurnEnv'] },
  {
    service: 'ors.number',
    environment: 'openreward',
    packages: ['openreward==0.1.167'],
    program: 'ors_server.py',
    args: [],
  },
];

/** Installs the packages of all servers from PyPI. */
export function installServers(): void {
  for (const { environment, packages } of SERVERS) installEnvironment(environment, packages);
}

export type RunningServer = { readonly url: string; stop(): Promise<void> };

/** Starts a server; returns `null` when its package is not installed. */
export async function startWorldServer({
  environment,
  packages,
  program,
  args,
}: WorldServer): Promise<RunningServer | null> {
  const python = installedPython(environment, packages);
  if (python === null) return null;
  const folder = mkdtempSync(join(tmpdir(), 'floe-worlds-'));
  const command = [python, '-u', join(PROGRAMS, program), ...args.map((arg) => arg ?? folder)];
  const child = new Child(command);
  // The programs print their address as the first line.
  if (!(await child.becameReady())) throw new Error(`${program} ended: ${child.errors}`);
  return {
    url: child.readyLine,
    async stop() {
      await child.stop();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
