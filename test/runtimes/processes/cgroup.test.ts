import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { systemClock } from '../../../src/core/clock.ts';
import { Cgroups } from '../../../src/runtimes/processes/cgroup.ts';
import { describeIf, NO_CONTROL_GROUPS } from '../../skip.ts';
import { bubblewrapMissing, never, Workbench } from '../workbench.ts';

const OWNER = `test${process.pid}`;
const problem = await bubblewrapMissing();
const groups = await Cgroups.find(systemClock, OWNER);
const groupsMissing = groups === null ? NO_CONTROL_GROUPS : null;

const limits = { memoryBytes: 64 * 1024 * 1024, taskCount: 20, cpus: 0.5 };

describeIf(groupsMissing, 'a control group', () => {
  it('has the limits in every hierarchy and no longer exists after its removal', async () => {
    const group = await groups?.create('s0', limits);
    const directories = group?.directories ?? [];
    expect(directories).not.toEqual([]);
    const values = directories.flatMap((directory) =>
      ['memory.limit_in_bytes', 'memory.max', 'pids.max']
        .filter((file) => existsSync(join(directory, file)))
        .map((file) => readFileSync(join(directory, file), 'utf8').trim()),
    );
    expect(values).toContain(String(limits.memoryBytes));
    expect(values).toContain('20');
    await group?.remove();
    expect(directories.filter((directory) => existsSync(directory))).toEqual([]);
  });

  it('is removed when a limit cannot be set', async () => {
    const group = await groups?.create('s0', limits);
    const parents = (group?.directories ?? []).map((directory) => dirname(directory));
    await group?.remove();
    await expect(groups?.create('s0', { ...limits, memoryBytes: Number.NaN })).rejects.toMatchObject({
      code: 'runtime_failed',
    });
    const mine = parents.flatMap((parent) =>
      readdirSync(parent).filter((name) => name.startsWith(`floe-${OWNER}-${process.pid}-`)),
    );
    expect(mine).toEqual([]);
  });
});

describeIf(groupsMissing ?? problem, 'a sandbox in a control group', () => {
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  it('distinguishes a command that ended at its limit from one that failed by itself', async () => {
    const runtime = await bench.start('bubblewrap', { max_processes: 20 });
    // The shell ends as soon as a fork fails, long before the next check of the limits, so only the counters of the control group show
    // which limit it hit.
    const gaveUp = await runtime.exec({ command: 'while :; do sleep 30 & done' }, never);
    expect(gaveUp.killedBy).toBe('processes');
    const failed = await runtime.exec({ command: 'exit 2' }, never);
    expect(failed).toMatchObject({ exitCode: 2, killedBy: null });
    const coped = await runtime.exec({ command: '(while :; do sleep 30 & done) 2>/dev/null; exit 0' }, never);
    expect(coped.exitCode).toBe(0);
    await runtime.stop();
  });

  it('gets no more processor time than its limit', async () => {
    const runtime = await bench.start('bubblewrap', { cpus: 0.1 });
    const spin =
      'const s = performance.now(); while (performance.now() - s < 600); const u = process.cpuUsage(); console.log((u.user + u.system) / 1000)';
    const result = await runtime.exec({ command: ['node', '-e', spin] }, never);
    // Processor time in ms. Allowed is a tenth of the 600 ms and of the start time, plus one quota period; without the limit it would be
    // all of the 600 ms.
    expect(Number(result.stdout)).toBeLessThan(400);
    await runtime.stop();
  });
});
