import type { Clock } from '../core/clock.ts';
import type { RuntimeBackend } from '../schema/index.ts';
import { BubblewrapProvider } from './bubblewrap.ts';
import { LocalProvider } from './local.ts';
import type { RuntimeProvider } from './runtime.ts';
import type { Spawner } from './spawner.ts';

export type RuntimeProviderOptions = {
  readonly spawner: Spawner;
  readonly clock: Clock;
  /** Sandboxes get their directories below it; nobody else may use it. */
  readonly stateDir: string;
  /** Whether tasks may ask for `network: host`; default: no. */
  readonly allowHostNetwork?: boolean | undefined;
};

/** Every sandbox back end, whether or not it works on this host: ask its `probe`. */
export function createRuntimeProviders(options: RuntimeProviderOptions): Map<RuntimeBackend, RuntimeProvider> {
  const { spawner, clock, stateDir, allowHostNetwork = false } = options;
  return new Map<RuntimeBackend, RuntimeProvider>([
    ['bubblewrap', new BubblewrapProvider({ spawner, clock, stateDir, allowHostNetwork })],
    ['local', new LocalProvider({ spawner, clock, stateDir })],
  ]);
}
