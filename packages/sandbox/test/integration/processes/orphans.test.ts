import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { sleep, systemClock } from '@floe-rl/core';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { itIf, NO_CONTROL_GROUPS } from '../../../../../test/skip.ts';
import { Cgroups, groupsOf } from '../../../src/processes/cgroup.ts';
import { endOwned, labelledProcesses } from '../../../src/processes/orphans.ts';
import { type Owner, readLabel } from '../../../src/processes/owner.ts';
import { bubblewrapMissing, never, processesMentioning, uniqueSeconds, Workbench } from '../../backends/workbench.ts';

const problem = await bubblewrapMissing();
const backends: readonly RuntimeBackend[] = problem === null ? ['local', 'bubblewrap'] : ['local'];
const hasGroups = (await Cgroups.find(systemClock, 'probe')) !== null;

/**
 * Program of a gateway with one sandbox. The sandbox's command tries to outlive the gateway: it ignores signals, forks twice, leaves its
 * process group and session, and keeps its parent's output open.
 */
const GATEWAY = `
const [packages, stateDir, backend, seconds, id] = process.argv.slice(1);
const { createSpawner } = await import(packages + '/sandbox/dist/spawn/client.js');
const { createRuntimeProviders } = await import(packages + '/sandbox/dist/backends/providers.js');
const { labelOf, HELPER_NAME } = await import(packages + '/sandbox/dist/processes/owner.js');
const { systemClock } = await import(packages + '/core/dist/clock.js');
const { runtimeSpecSchema } = await import(packages + '/core/dist/schema/index.js');
const owner = { id, instance: 'dead' };
const spawner = await createSpawner(labelOf(owner, HELPER_NAME));
const provider = createRuntimeProviders({ spawner, clock: systemClock, stateDir, owner }).get(backend);
const spec = runtimeSpecSchema.parse({});
const never = new AbortController().signal;
const runtime = await provider.start({ name: 'ses_1-1-agent', spec, proxy: null, readOnlyMounts: [] }, never);
const stubborn = "trap '' TERM HUP INT; (setsid sh -c \\"trap '' TERM HUP; (sleep " + seconds + ' & touch up; wait)" &) & sleep ' + seconds;
runtime.exec({ command: stubborn }, never).catch(() => {});
await runtime.exec({ command: 'until [ -e up ]; do sleep 0.01; done' }, never);
console.log(spawner.helperPid);
`;

type KilledGateway = {
  readonly id: string;
  readonly seconds: string;
  readonly helperPid: number;
  readonly child: ChildProcess;
};

async function startGateway(stateDir: string, backend: RuntimeBackend): Promise<KilledGateway> {
  const id = randomBytes(8).toString('hex');
  const seconds = uniqueSeconds();
  const args = ['--input-type=module', '-e', GATEWAY, resolve('packages'), stateDir, backend, seconds, id];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  return { id, seconds, helperPid: Number(line), child };
}

/** Suspends the spawn helper, and then kills the gateway and the helper, so that neither of them can end the sandbox's processes. */
async function killBoth({ helperPid, child }: KilledGateway): Promise<void> {
  process.kill(helperPid, 'SIGSTOP');
  child.kill('SIGKILL');
  await once(child, 'close');
  process.kill(helperPid, 'SIGKILL');
}

async function untilNone(text: string, signal: AbortSignal): Promise<void> {
  while ((await processesMentioning(text)).length > 0) await sleep(systemClock, 5, signal);
}

describe.each(backends)('endOwned, after gateway and spawn helper of a %s sandbox were killed together', (backend) => {
  it('ends the processes of its owner and none of another gateway', async ({ signal }) => {
    const stateDir = mkdtempSync(join(tmpdir(), 'floe-orphans-'));
    const dead = await startGateway(stateDir, backend);
    const other = await startGateway(mkdtempSync(join(tmpdir(), 'floe-orphans-')), backend);
    try {
      await killBoth(dead);
      if (backend === 'local') expect(await processesMentioning(dead.seconds)).not.toEqual([]);
      const ended = await endOwned(dead.id, () => true, systemClock);
      expect(ended.survivors).toEqual([]);
      if (backend === 'local') expect(ended.processes).toBeGreaterThan(0);
      expect(await processesMentioning(dead.seconds)).toEqual([]);
      expect(await labelledProcesses(dead.id)).toEqual([]);
      expect(await groupsOf(dead.id)).toEqual([]);
      // Two gateways had sandboxes. Ending the processes of the gateway `dead` must not end the processes of the gateway `other`, neither
      // while `other` is alive nor after its death.
      expect(await processesMentioning(other.seconds)).not.toEqual([]);
      await killBoth(other);
      await endOwned(dead.id, () => true, systemClock);
      if (backend === 'local') expect(await processesMentioning(other.seconds)).not.toEqual([]);
    } finally {
      await endOwned(other.id, () => true, systemClock);
      rmSync(stateDir, { recursive: true, force: true });
    }
    await untilNone(other.seconds, signal);
  });
});

itIf(
  hasGroups ? null : NO_CONTROL_GROUPS,
  'a local agent that clears its environment is found by its control group',
  async () => {
    const owner: Owner = { id: randomBytes(8).toString('hex'), instance: 'me' };
    const bench = await Workbench.open({ owner });
    const seconds = uniqueSeconds();
    const runtime = await bench.start('local');
    const command = `env -i setsid sleep ${seconds} & until [ -e never ]; do sleep 0.01; done`;
    const running = runtime.exec({ command }, never).catch(() => null);
    while ((await processesMentioning(`sleep\0${seconds}`)).length === 0) await sleep(systemClock, 5);
    process.kill(bench.spawner.helperPid ?? 0, 'SIGKILL');
    await running;
    await runtime.stop();
    expect(await processesMentioning(`sleep\0${seconds}`)).toEqual([]);
    expect(await groupsOf(owner.id)).toEqual([]);
    await bench.close();
  },
);

describe.each(backends)('a %s sandbox whose helper was killed', (backend) => {
  it('leaves no process once it is stopped, while another sandbox keeps running', async () => {
    const owner: Owner = { id: randomBytes(8).toString('hex'), instance: 'me' };
    const bench = await Workbench.open({ owner });
    const seconds = uniqueSeconds();
    const runtime = await bench.start(backend);
    const command = `trap '' TERM; (setsid sleep ${seconds} &) ; sleep ${seconds}`;
    const running = runtime.exec({ command }, never).catch((error: unknown) => error);
    while ((await processesMentioning(`sleep\0${seconds}`)).length < 2) await sleep(systemClock, 5);
    process.kill(bench.spawner.helperPid ?? 0, 'SIGKILL');
    expect(await running).toMatchObject({ code: 'runtime_failed' });
    const next = await bench.start(backend);
    await runtime.stop();
    expect(await processesMentioning(`sleep\0${seconds}`)).toEqual([]);
    expect((await next.exec({ command: 'echo alive' }, never)).stdout).toBe('alive\n');
    await next.stop();
    expect(await bench.sessionDirs()).toEqual([]);
    expect(await groupsOf(owner.id)).toEqual([]);
    await bench.close();
  });
});

describe('a cancelled command', () => {
  it.for(backends)(
    'of a %s sandbox ends together with processes that left its group and hold its output open',
    async (backend) => {
      const bench = await Workbench.open();
      const seconds = uniqueSeconds();
      const runtime = await bench.start(backend);
      const cancel = new AbortController();
      // Where control groups exist or the sandbox has a pid namespace, the process clears its environment. Elsewhere the process keeps its
      // environment, because floe then finds the processes of a sandbox by their environment.
      const clear = backend === 'local' && !hasGroups ? '' : 'env -i';
      const command = `trap '' TERM; (${clear} setsid sleep ${seconds} &); (setsid sleep ${seconds} &); sleep ${seconds}`;
      const running = runtime.exec({ command }, cancel.signal).catch((error: unknown) => error);
      while ((await processesMentioning(`sleep\0${seconds}`)).length < 3) await sleep(systemClock, 5);
      const reason = new Error('cancelled');
      cancel.abort(reason);
      expect(await running).toBe(reason);
      expect(await processesMentioning(`sleep\0${seconds}`)).toEqual([]);
      await runtime.stop();
      expect(existsSync(runtime.paths.workdir) && backend === 'local').toBe(false);
      await bench.close();
    },
  );
});

it('a sandbox reports activity while a command writes output', async () => {
  const bench = await Workbench.open();
  let seen = (): void => {};
  const first = new Promise<void>((done) => (seen = done));
  let calls = 0;
  const onActivity = (): void => {
    calls++;
    // The first call of `onActivity` reports the start of the command, and the second one the command's first output.
    if (calls === 2) seen();
  };
  const runtime = await bench.start('local', {}, { onActivity });
  const running = runtime.exec({ command: 'echo now; until [ -e stop ]; do sleep 0.01; done' }, never);
  await first;
  await runtime.writeFiles([{ path: 'stop', content: Buffer.alloc(0) }], never);
  expect((await running).exitCode).toBe(0);
  await runtime.stop();
  await bench.close();
});

describe('a label', () => {
  it('is read only for its own owner', () => {
    const environment = 'A=1\0FLOE_SANDBOX_LABEL=aa/proc_1/ses.1-2-agent\0B=2';
    expect(readLabel(environment, 'aa')).toEqual({ instance: 'proc_1', name: 'ses.1-2-agent' });
    expect(readLabel(environment, 'a')).toBeNull();
    expect(readLabel('XFLOE_SANDBOX_LABEL=aa/proc_1/x', 'aa')).toBeNull();
    expect(readLabel('FLOE_SANDBOX_LABEL=aa/', 'aa')).toBeNull();
  });
});
