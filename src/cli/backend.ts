import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '../core/clock.ts';
import { createRuntimeProviders } from '../runtimes/providers.ts';
import type { RuntimeProblem } from '../runtimes/runtime.ts';
import { createSpawner } from '../runtimes/spawn/client.ts';
import type { RuntimeBackend } from '../schema/index.ts';

/** Tests whether each runtime works on this machine. Resolves to the problem by runtime; `null` for a runtime that works. */
export async function probeBackends(): Promise<Map<RuntimeBackend, RuntimeProblem | null>> {
  const stateDir = await mkdtemp(join(tmpdir(), 'floe-probe-'));
  const spawner = await createSpawner();
  try {
    const providers = createRuntimeProviders({ spawner, clock: systemClock, stateDir, allowHostNetwork: false });
    const problems = new Map<RuntimeBackend, RuntimeProblem | null>();
    for (const [backend, provider] of providers) problems.set(backend, await provider.probe());
    return problems;
  } finally {
    await spawner.close();
    await rm(stateDir, { recursive: true, force: true });
  }
}

export type BackendChoice = { readonly backend: RuntimeBackend; readonly problem: RuntimeProblem | null };

/** Chooses bubblewrap when it works on this machine. Otherwise chooses local, and returns the problem of bubblewrap with it. */
export async function chooseBackend(): Promise<BackendChoice> {
  const problem = (await probeBackends()).get('bubblewrap') ?? null;
  return { backend: problem === null ? 'bubblewrap' : 'local', problem };
}

/** Returns the warning that agents run without a sandbox, with the reason and its remedy. */
export function isolationWarning(problem: RuntimeProblem): string {
  return `Agents run WITHOUT ISOLATION, as ordinary processes of this user: ${problem.problem}. To sandbox them: ${problem.remedy}`;
}
