import { randomBytes } from 'node:crypto';
import type { Clock } from '../core/clock.ts';
import type { RuntimeBackend } from '../schema/index.ts';
import { BubblewrapProvider } from './bubblewrap/provider.ts';
import { LocalProvider } from './local.ts';
import { Cgroups } from './processes/cgroup.ts';
import type { Owner } from './processes/owner.ts';
import type { RuntimeProvider } from './runtime.ts';
import type { Spawner } from './spawn/spawner.ts';

export type RuntimeProviderOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  /** Directory in which the sandboxes have their directories. No other process may use it. */
  readonly stateDir: string;
  /** Whether tasks may request `network: host`; default: false. */
  readonly allowHostNetwork?: boolean | undefined;
  /**
   * The owner in the labels of the sandboxes' processes. By default a new random owner, so that no later gateway ends processes that this
   * one leaves running.
   */
  readonly owner?: Owner | undefined;
};

/**
 * Creates the providers of all sandbox back ends, including those that do not work on this host; the `probe` of a provider checks that.
 */
export function createRuntimeProviders(options: RuntimeProviderOptions): Map<RuntimeBackend, RuntimeProvider> {
  const { spawner, clock, stateDir, allowHostNetwork = false } = options;
  const owner = options.owner ?? { id: randomBytes(8).toString('hex'), instance: String(process.pid) };
  let probed: Promise<Cgroups | null> | null = null;
  const cgroups = (): Promise<Cgroups | null> => {
    probed ??= Cgroups.find(clock, owner.id);
    return probed;
  };
  const common = { spawner, clock, stateDir, owner, cgroups };
  return new Map<RuntimeBackend, RuntimeProvider>([
    ['bubblewrap', new BubblewrapProvider({ ...common, allowHostNetwork })],
    ['local', new LocalProvider(common)],
  ]);
}
