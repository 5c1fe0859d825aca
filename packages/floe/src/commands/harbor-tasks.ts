import { FloeError } from '@floe-rl/core';
import type { RuntimeBackend, TaskRequestInput } from '@floe-rl/core/schema';
import { floeTask, type HarborTask, loadHarborTask, taskFolders } from '@floe-rl/data';
import { DOCKER_SOCKET, podmanSocket } from '@floe-rl/sandbox';
import type { Command } from 'commander';
import { type ConfigFileOptions, readImageSettings, withConfigOption } from './config-file.ts';
import { IMAGE_BACKENDS, type TaskImages, taskImages } from './harbor-images.ts';
import type { ReferenceTask } from './harbor-reference.ts';
import { listed } from './options.ts';
import { printNote } from './print.ts';

/** Options for the conversion of Harbor tasks. */
export type HarborTaskOptions = ConfigFileOptions & {
  backend: RuntimeBackend;
  dockerSocket: string;
  podmanSocket: string;
  apptainerCommand: string;
  image?: string;
  buildNetwork?: string;
  allowNetwork?: boolean;
  ignoreUsers?: boolean;
  passEnv: string[];
};

/** Adds the options for the conversion of Harbor tasks. */
export function withHarborTaskOptions(command: Command): Command {
  return withConfigOption(command)
    .option('--backend <name>', `runtime of the sandboxes: ${listed(IMAGE_BACKENDS)}`, 'docker')
    .option('--docker-socket <path>', 'Unix socket of the Docker daemon', DOCKER_SOCKET)
    .option('--podman-socket <path>', 'Unix socket of the Podman service', podmanSocket())
    .option('--apptainer-command <program>', 'program Apptainer, a path or a name', 'apptainer')
    .option('--image <name>', 'image of every task, instead of its own')
    .option('--build-network <mode>', "network of a Dockerfile's commands (default: that of the container engine)")
    .option('--allow-network', 'give the network to tasks, except those that forbid it')
    .option('--ignore-users', 'run all commands as the only user of a sandbox that has one')
    .option('--pass-env <name...>', 'variables of this process that tasks may read', []);
}

/** Reads the tasks of a path, gets their images, and converts them for an agent. */
export async function loadTasks(
  path: string,
  agent: TaskRequestInput['agent'],
  options: HarborTaskOptions,
  signal: AbortSignal,
): Promise<ReferenceTask[]> {
  const folders = await taskFolders(path);
  const harborTasks = await Promise.all(folders.map(loadHarborTask));
  refuseSameNames(harborTasks);
  const { backend, image, buildNetwork } = options;
  const settings = await readImageSettings(options);
  const images = taskImages({ backend, sockets: options, settings, image, buildNetwork, log: printNote });
  try {
    const tasks: ReferenceTask[] = [];
    for (const harbor of harborTasks)
      tasks.push({ harbor, task: await converted(harbor, agent, images, options, signal) });
    return tasks;
  } finally {
    await images.close();
  }
}

async function converted(
  harbor: HarborTask,
  agent: TaskRequestInput['agent'],
  images: TaskImages,
  options: HarborTaskOptions,
  signal: AbortSignal,
) {
  const { environment } = harbor.verifier;
  const key = 'environment.docker_image';
  const image = await images.imageOf({ ...harbor, key }, signal);
  const verifierImage =
    environment === null || environment.image === null
      ? null
      : await images.imageOf(
          {
            ...{ file: harbor.file, key: `verifier.${key}`, name: `${harbor.name}-verifier` },
            ...{ image: environment.image, buildSeconds: environment.buildSeconds },
          },
          signal,
        );
  return floeTask(harbor, {
    agent,
    backend: options.backend,
    image,
    verifierImage,
    hostVariables: hostVariables(options.passEnv),
    allowNetwork: options.allowNetwork === true,
    ignoreUsers: options.ignoreUsers === true,
    withTools: agent.harness !== 'shell',
  });
}

function refuseSameNames(tasks: readonly HarborTask[]): void {
  const seen = new Map<string, string>();
  for (const { name, file } of tasks) {
    const other = seen.get(name);
    if (other !== undefined) throw new FloeError('setup_failed', `${file} and ${other} have the same name ${name}`);
    seen.set(name, file);
  }
}

/** Returns the variables of this process that tasks may read. Throws `bad_request` for a variable that is not set. */
export function hostVariables(names: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    names.map((name) => {
      const value = process.env[name];
      if (value === undefined) throw new FloeError('bad_request', `--pass-env: the variable ${name} is not set`);
      return [name, value];
    }),
  );
}
