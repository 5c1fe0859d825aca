import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock } from '../core/clock.ts';
import { createRuntimeProviders } from '../runtimes/providers.ts';
import type { RuntimeProblem } from '../runtimes/runtime.ts';
import { createSpawner } from '../runtimes/spawn/client.ts';
import type { RuntimeBackend } from '../schema/index.ts';

/** What stands in the way of each back end on this machine; null: it works. */
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

/** bubblewrap where it works; otherwise local, with the problem that has to be said. */
export async function chooseBackend(): Promise<BackendChoice> {
  const problem = (await probeBackends()).get('bubblewrap') ?? null;
  return { backend: problem === null ? 'bubblewrap' : 'local', problem };
}

export function isolationWarning(problem: RuntimeProblem): string {
  return `agents run WITHOUT ISOLATION, as plain processes of this user: ${problem.problem}. To sandbox them: ${problem.remedy}`;
}
