import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { systemClock } from '@floe-rl/core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf, NO_CONTROL_GROUPS } from '../../../../../test/skip.ts';
import { Cgroups } from '../../../src/processes/cgroup.ts';
import { bubblewrapMissing, never, Workbench } from '../../backends/workbench.ts';

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

  it('limits exactly what its controllers are for', async () => {
    const group = await groups?.create('s0', limits);
    const files = (group?.directories ?? []).flatMap((directory) => readdirSync(directory));
    await group?.remove();
    const has = (names: readonly string[]): boolean => names.some((name) => files.includes(name));
    expect(groups?.controllers.has('memory')).toBe(has(['memory.limit_in_bytes', 'memory.max']));
    expect(groups?.controllers.has('pids')).toBe(has(['pids.max']));
    expect(groups?.controllers.has('cpu')).toBe(has(['cpu.cfs_quota_us', 'cpu.max']));
  });

  it('has the same share of the processors as all others, without any limit on them', async () => {
    const group = await groups?.create('s0', { ...limits, cpus: null });
    const read = (names: readonly string[]): string[] =>
      (group?.directories ?? []).flatMap((directory) =>
        names
          .map((name) => join(directory, name))
          .filter((path) => existsSync(path))
          .map((path) => readFileSync(path, 'utf8').trim()),
      );
    const shares = read(['cpu.weight', 'cpu.shares']);
    const quotas = read(['cpu.cfs_quota_us', 'cpu.max']);
    await group?.remove();
    if (groups?.controllers.has('cpu') === true) {
      expect(['20', '1024']).toContain(shares[0]);
      expect(['-1', 'max 100000']).toContain(quotas[0]);
    } else {
      expect(shares).toEqual([]);
    }
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

describe('a hierarchy of version 2', () => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'floe-cgroup-'));
    mkdirSync(join(dir, 'proc'));
    mkdirSync(join(dir, 'groups', 'service', 'gateway'), { recursive: true });
    writeFileSync(join(dir, 'proc', 'mounts'), `cgroup2 ${join(dir, 'groups')} cgroup2 rw 0 0\n`);
    writeFileSync(join(dir, 'proc', 'cgroup'), '0::/service/gateway\n');
  });
  afterAll(() => rmSync(dir, { recursive: true }));

  it.each([
    ['memory pids', ['memory.max', 'memory.oom.group', 'pids.max']],
    ['cpuset cpu io memory pids', ['cpu.max', 'cpu.weight', 'memory.max', 'memory.oom.group', 'pids.max']],
    ['memory', ['memory.max', 'memory.oom.group']],
    ['cpu pids', ['cpu.max', 'cpu.weight', 'pids.max']],
  ])('that has the controllers "%s" limits exactly what these are for', async (controllers, files) => {
    writeFileSync(join(dir, 'groups', 'service', 'cgroup.subtree_control'), `${controllers}\n`);
    const found = await Cgroups.find(systemClock, OWNER, join(dir, 'proc'));
    const expected = ['memory', 'pids', 'cpu'].filter((name) => controllers.split(' ').includes(name));
    expect([...(found?.controllers ?? [])].sort()).toEqual(expected.sort());
    const [directory = ''] = (await found?.create('s0', limits))?.directories ?? [];
    expect(dirname(directory)).toBe(join(dir, 'groups', 'service'));
    expect(readdirSync(directory).sort()).toEqual(files);
  });

  it('is used at its root when that has more controllers than the parent of the own group', async () => {
    writeFileSync(join(dir, 'groups', 'service', 'cgroup.subtree_control'), 'memory pids\n');
    const root = join(dir, 'groups', 'cgroup.subtree_control');
    writeFileSync(root, 'cpu memory pids\n');
    const found = await Cgroups.find(systemClock, OWNER, join(dir, 'proc'));
    rmSync(root);
    const [directory = ''] = (await found?.create('s0', limits))?.directories ?? [];
    expect(dirname(directory)).toBe(join(dir, 'groups'));
    expect(found?.controllers).toContain('cpu');
  });

  it('without any of these controllers is not used', async () => {
    writeFileSync(join(dir, 'groups', 'service', 'cgroup.subtree_control'), 'cpuset io\n');
    expect(await Cgroups.find(systemClock, OWNER, join(dir, 'proc'))).toBeNull();
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
    // The shell ends as soon as a fork fails, long before the next periodic check of the limits. Only the counters of the control group
    // then show which limit the command hit.
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
    // The command spins for 600 ms and prints the CPU time that it used, in ms. The limit allows a tenth of its running time plus one quota
    // period of 100 ms. Without the limit, the command would use all of the 600 ms.
    expect(Number(result.stdout)).toBeLessThan(400);
    await runtime.stop();
  });
});
