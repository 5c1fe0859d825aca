import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { sleep, systemClock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { afterAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { endOwned } from '../../../src/processes/orphans.ts';
import {
  bubblewrapMissing,
  processesThatMount,
  uniqueSeconds,
  untilNone,
  untilSome,
  Workbench,
} from '../../backends/workbench.ts';

const problem = await bubblewrapMissing();

/**
 * Program of a minimal gateway with one sandbox. If the back end takes snapshots, the sandbox has a snapshot. A command runs in the sandbox
 * until it is killed. The program prints the process id of its spawn helper once the command runs.
 */
const GATEWAY = `
const [packages, stateDir, backend, seconds, id] = process.argv.slice(1);
const { createSpawner } = await import(packages + '/sandbox/dist/spawn/client.js');
const { createRuntimeProviders } = await import(packages + '/sandbox/dist/backends/providers.js');
const { systemClock } = await import(packages + '/core/dist/clock.js');
const { runtimeSpecSchema } = await import(packages + '/core/dist/schema/index.js');
const spawner = await createSpawner();
const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir, owner: { id, instance: 'dead' } }).get(backend);
const spec = runtimeSpecSchema.parse({});
const runtime = await provider.start({ name: 's', spec, proxy: null, readOnlyMounts: [] }, new AbortController().signal);
if (backend === 'bubblewrap') await runtime.restore(await runtime.snapshot(new AbortController().signal), new AbortController().signal);
runtime.exec({ command: 'touch up; sleep ' + seconds + ' & exec sleep ' + seconds }, new AbortController().signal).catch(() => {});
await runtime.exec({ command: 'until [ -e up ]; do sleep 0.01; done' }, new AbortController().signal);
console.log(spawner.helperPid);
`;

/**
 * Owner id in the labels of all sandboxes that these tests start. The clean-up after the tests kills all remaining processes of this owner.
 */
const OWNER = `crash${process.pid}`;
afterAll(() => endOwned(OWNER, () => true, systemClock));

async function startGateway(stateDir: string, backend: RuntimeBackend, seconds: string) {
  const args = ['--input-type=module', '-e', GATEWAY, resolve('packages'), stateDir, backend, seconds, OWNER];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  return { child, helperPid: Number(line) };
}

/** Kills a gateway's spawn helper if a failed test has left it running. */
function killHelper(pid: number): void {
  try {
    process.kill(pid, 'SIGTERM');
  } catch {
    // The signal cannot be sent because the spawn helper has already ended.
  }
}

describeIf(problem, 'a gateway that is killed', () => {
  it.for<[RuntimeBackend, string]>([
    ['bubblewrap', 'alone'],
    ['bubblewrap', 'together with its helper'],
    ['local', 'alone'],
  ])(
    'leaves no process and no mount of a %s session (killed %s)',
    async ([backend, how], { signal, onTestFinished }) => {
      const stateDir = mkdtempSync(join(tmpdir(), 'floe-crash-'));
      const seconds = uniqueSeconds();
      const { child, helperPid } = await startGateway(stateDir, backend, seconds);
      onTestFinished(() => killHelper(helperPid));
      await untilSome(`sleep\0${seconds}`, signal);
      if (how !== 'alone') process.kill(helperPid, 'SIGKILL');
      child.kill('SIGKILL');
      await once(child, 'close');
      await untilNone(seconds, signal);
      await untilNone(stateDir, signal);
      while ((await processesThatMount(stateDir)).length > 0) await sleep(systemClock, 5, signal);
      rmSync(stateDir, { recursive: true });
    },
  );

  it('leaves directories that the next gateway removes', async () => {
    const bench = await Workbench.open();
    const { child } = await startGateway(bench.stateDir, 'bubblewrap', uniqueSeconds());
    child.kill('SIGKILL');
    await once(child, 'close');
    expect(await bench.sessionDirs()).toHaveLength(1);
    const runtime = await bench.start('bubblewrap');
    expect(await bench.sessionDirs()).toEqual([`bubblewrap-${process.pid}/s0`]);
    await runtime.stop();
    await bench.close();
  });
});

describeIf(problem, 'a sandbox whose spawn helper died', () => {
  it('rejects its commands with a reason and can still be stopped', async () => {
    const bench = await Workbench.open();
    const runtime = await bench.start('bubblewrap');
    const { signal } = new AbortController();
    const running = runtime.exec({ command: 'sleep 1000' }, signal);
    const rejected = expect(running).rejects.toMatchObject({ code: 'runtime_failed' });
    process.kill(bench.spawner.helperPid ?? 0, 'SIGKILL');
    await rejected;
    await expect(runtime.exec({ command: 'true' }, signal)).rejects.toMatchObject({ code: 'runtime_failed' });
    await runtime.stop();
    expect(await bench.sessionDirs()).toEqual([]);
    const next = await bench.start('bubblewrap');
    expect((await next.exec({ command: 'echo back' }, signal)).stdout).toBe('back\n');
    await next.stop();
    await bench.close();
  });
});
