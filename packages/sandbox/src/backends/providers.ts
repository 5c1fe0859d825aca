import { randomBytes } from 'node:crypto';
import type { Clock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import type { RuntimeProvider } from '../api/runtime.ts';
import type { NodeImages } from '../images/node-images.ts';
import { Cgroups } from '../processes/cgroup.ts';
import type { Owner } from '../processes/owner.ts';
import type { Spawner } from '../spawn/spawner.ts';
import { apptainerProvider } from './apptainer/provider.ts';
import { bubblewrapProvider } from './bubblewrap/provider.ts';
import { containerProvider } from './container/provider.ts';
import { LocalProvider } from './local.ts';
import { NoneProvider } from './none.ts';

/** Path at which a Docker daemon listens unless it is configured otherwise. */
export const DOCKER_SOCKET = '/var/run/docker.sock';

/** Returns the path at which systemd starts the Podman service of this user. */
export function podmanSocket(): string {
  const uid = process.getuid?.() ?? 0;
  return uid === 0 ? '/run/podman/podman.sock' : `/run/user/${uid}/podman/podman.sock`;
}

export type RuntimeProviderOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  /** Directory on the host in which each sandbox has a directory of its own. No other process may use this directory. */
  readonly stateDir: string;
  /** Unix socket of the Docker daemon; default: {@link DOCKER_SOCKET}. */
  readonly dockerSocket?: string | undefined;
  /** Images of registries, for back ends that unpack them; default: none, so that only directories can be images. */
  readonly images?: NodeImages | null | undefined;
  /** Unix socket of the Podman service; default: {@link podmanSocket}. */
  readonly podmanSocket?: string | undefined;
  /** The program Apptainer, a path or a name; default: `apptainer`. */
  readonly apptainerCommand?: string | undefined;
  /** Whether tasks may request `network: host`; default: false. */
  readonly allowHostNetwork?: boolean | undefined;
  /**
   * Owner in the labels of the sandboxes' processes. A label is an environment variable. With it, a restarted gateway finds and ends processes
   * that an earlier gateway left. Default: a new random owner, so that no other gateway ends these processes.
   */
  readonly owner?: Owner | undefined;
};

/**
 * Creates the providers of all sandbox back ends, including back ends that do not work on this host. `RuntimeProvider.probe` checks whether a
 * back end works.
 */
export function createRuntimeProviders(options: RuntimeProviderOptions): Map<RuntimeBackend, RuntimeProvider> {
  const { spawner, clock, stateDir, allowHostNetwork = false, images = null } = options;
  const owner = options.owner ?? { id: randomBytes(8).toString('hex'), instance: String(process.pid) };
  let probed: Promise<Cgroups | null> | null = null;
  const cgroups = (): Promise<Cgroups | null> => {
    probed ??= Cgroups.find(clock, owner.id);
    return probed;
  };
  const common = { spawner, clock, stateDir, owner, allowHostNetwork, cgroups, images };
  const container = (backend: 'docker' | 'podman', engineSocket: string): RuntimeProvider =>
    containerProvider({ ...common, backend, engineSocket, maxPulls: images?.enginePulls ?? null });
  return new Map<RuntimeBackend, RuntimeProvider>([
    ['bubblewrap', bubblewrapProvider(common)],
    ['docker', container('docker', options.dockerSocket ?? DOCKER_SOCKET)],
    ['podman', container('podman', options.podmanSocket ?? podmanSocket())],
    ['apptainer', apptainerProvider({ ...common, command: options.apptainerCommand ?? 'apptainer' })],
    ['local', new LocalProvider(common)],
    ['none', new NoneProvider()],
  ]);
}
