import { rm } from 'node:fs/promises';
import { makeTempDir, systemClock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { createRuntimeProviders, createSpawner, type RuntimeDescription, type RuntimeProblem } from '@floe-rl/sandbox';

/** Result of testing a runtime: a description of it when it works on this machine, or else the problem. */
export type BackendReport =
  | { readonly problem: null; readonly description: RuntimeDescription }
  | { readonly problem: RuntimeProblem };

/** Tests whether each runtime works on this machine. */
export async function probeBackends(): Promise<Map<RuntimeBackend, BackendReport>> {
  const stateDir = makeTempDir('floe-probe-');
  const spawner = await createSpawner();
  try {
    const providers = createRuntimeProviders({ spawner, clock: systemClock, stateDir, allowHostNetwork: false });
    const reports = new Map<RuntimeBackend, BackendReport>();
    for (const [backend, provider] of providers) {
      const problem = await provider.probe();
      reports.set(backend, problem === null ? { problem, description: await provider.describe() } : { problem });
    }
    return reports;
  } finally {
    await spawner.close();
    await rm(stateDir, { recursive: true, force: true });
  }
}

export type BackendChoice = { readonly backend: RuntimeBackend; readonly problem: RuntimeProblem | null };

/**
 * Chooses the runtime `bubblewrap` when it works on this machine. Otherwise chooses `local`, which does not isolate agents, and returns the
 * reason why bubblewrap does not work as `problem`.
 */
export async function chooseBackend(): Promise<BackendChoice> {
  const problem = (await probeBackends()).get('bubblewrap')?.problem ?? null;
  return { backend: problem === null ? 'bubblewrap' : 'local', problem };
}

/** Returns the warning that agents run without a sandbox. It names the reason and the remedy. */
export function isolationWarning(problem: RuntimeProblem): string {
  return `Agents run WITHOUT ISOLATION, as ordinary processes of this user: ${problem.problem}. To sandbox them: ${problem.remedy}`;
}
