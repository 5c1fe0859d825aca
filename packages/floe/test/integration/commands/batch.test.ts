import { randomUUID } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BatchReply, BatchStreamView } from '@floe-rl/core/schema';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { reportOf } from '../../../src/commands/sim-trainer.ts';
import { startTestService, type TestService } from '../../../src/testing/index.ts';
import { loadBatchFilters } from '../../../src/up/batch-filters.ts';
import { CLI, type Exit, run } from '../../commands/machine.ts';

let service: TestService;
let dir: string;
beforeAll(async () => {
  service = await startTestService();
  dir = await mkdtemp(join(tmpdir(), 'floe-batch-cli-'));
});
afterAll(async () => {
  await service.close();
  await rm(dir, { recursive: true, force: true });
});

const floe = (...words: string[]): Promise<Exit> =>
  run([process.execPath, CLI, ...words], { FLOE_URL: service.url, FLOE_HOME: dir, FLOE_TOKEN: '' });

const STREAM = `
batch_id: B
task:
  instruction: '{{row.text}}'
  num_samples: 2
  agent: { harness: shell, custom_shell: 'true' }
  evaluator: { strategy: session_completed }
source: { kind: rows }
batch_size: 2
accept: { min_usable: 0, zero_variance: keep }
order: { epochs: 1 }
`;

async function streamFile(name: string): Promise<string> {
  const path = join(dir, `${name}.yaml`);
  await writeFile(path, STREAM.replace('B', name));
  return path;
}

describe('floe batch', () => {
  it('creates a stream, sends it the rows of a file once, and prints its batches', async () => {
    const rows = join(dir, 'rows.jsonl');
    await writeFile(rows, [1, 2, 3].map((n) => `${JSON.stringify({ text: `t${n}` })}\n`).join(''));
    const file = await streamFile('first');
    for (let repeat = 0; repeat < 2; repeat++) {
      const created = await floe('batch', 'create', file, '--rows', rows, '--json');
      expect(created.code).toBe(0);
      expect(JSON.parse(created.output) as BatchStreamView).toMatchObject({ row_count: 3, rows_complete: true });
    }
    const sizes: (number | null)[] = [];
    for (let after = 0; after < 2; after++) {
      const printed = await floe('batch', 'next', 'first', '--after', String(after), '--policy-version', 'v1');
      const reply = JSON.parse(printed.output) as BatchReply;
      sizes.push(reply.batch, reply.groups.length);
    }
    expect(sizes).toEqual([1, 2, 2, 1]);
    expect((await floe('batch', 'show', 'first')).output).toContain('2 handed out');
    expect((await floe('batch', 'list')).output).toContain('first');
    expect((await floe('batch', 'end', 'first')).output).toContain('done');
  });

  it('prints records with the settings of an export, and refuses these settings without a format', async () => {
    const file = await streamFile('records');
    const rows = join(dir, 'one.jsonl');
    await writeFile(rows, '{"text":"t"}\n');
    await floe('batch', 'create', file, '--rows', rows);
    const settings = ['--advantages', 'centered', '--per-session', '--per-turn', '--constrained', 'mask'];
    const printed = await floe('batch', 'next', 'records', '--after', '0', '--format', 'floe', ...settings);
    expect(JSON.parse(printed.output)).toMatchObject({ batch: 1, records: [] });
    const refused = await floe('batch', 'next', 'records', '--after', '0', '--constrained', 'mask');
    expect([refused.code, refused.output]).toEqual([expect.any(Number), expect.stringContaining('constrained')]);
    expect(refused.code).not.toBe(0);
  });

  it('names the option of a wrong number and exits with 2', async () => {
    const { code, output } = await floe('batch', 'next', 'none', '--after', 'x');
    expect([code, output]).toEqual([2, expect.stringContaining('--after')]);
  });
});

describe('floe sim-trainer', () => {
  it('consumes batches, pushes a version after each, and reports how long it waited', async () => {
    const file = await streamFile('sized');
    const rows = join(dir, 'six.jsonl');
    await writeFile(rows, Array.from({ length: 6 }, (_, n) => `${JSON.stringify({ text: `t${n}` })}\n`).join(''));
    await floe('batch', 'create', file, '--rows', rows);
    const words = ['--batches', '3', '--step-seconds', '0', '--push-seconds', '0', '--json'];
    const { code, output } = await floe('sim-trainer', 'sized', ...words);
    expect(code).toBe(0);
    expect(JSON.parse(output)).toMatchObject({ steps: 3, maxStaleness: expect.any(Number) });
    expect(await service.client.batchStream('sized')).toMatchObject({ policy_step: 3, batch: 3 });
  });

  it('leaves the start of the stream out of the waiting time, and says how much capacity is missing', () => {
    const step = { batch: 1, groups: 2, trainedTokens: 100, meanStaleness: 1, maxStaleness: 2 };
    const steps = [30, 10, 10].map((waitSeconds) => ({ ...step, waitSeconds }));
    const report = reportOf(steps, 30 + 20 + 60);
    expect(report).toMatchObject({ steps: 3, waitShare: 0.25, maxStaleness: 2 });
    expect(report.capacityFactor).toBeCloseTo(80 / 60);
    expect(report.tokensPerSecond).toBeCloseTo(300 / 110);
  });
});

describe('the setting batch_filters', () => {
  it('loads functions, and names a module without one', async () => {
    const good = join(dir, 'good.mjs');
    const bad = join(dir, 'bad.mjs');
    await writeFile(good, 'export function acceptGroup(group) { return group.row_index > 1; }');
    await writeFile(bad, 'export const other = 1;');
    const filters = await loadBatchFilters({ late: good });
    const group = { row_index: 2, epoch: 0, policy_step: null, mean_reward: null, samples: [] };
    expect(filters.get('late')?.(group)).toBe(true);
    expect(filters.get('late')?.({ ...group, row_index: 1 })).toBe(false);
    for (const path of [bad, join(dir, 'missing.mjs')]) {
      await expect(loadBatchFilters({ x: path })).rejects.toMatchObject({
        code: 'setup_failed',
        message: expect.stringContaining(path),
      });
    }
  });

  it.each([
    ['returns a promise', 'async () => true', /promise/],
    ['returns a promise that is rejected', 'async () => { throw new Error("late"); }', /promise/],
    ['does not return', '() => { for (;;); }', /timed out/],
    ['throws', '() => { throw new Error("boom"); }', /boom/],
  ])('turns a function that %s into an error, and the process continues', async (_, code, message) => {
    const path = join(dir, `${randomUUID()}.mjs`);
    await writeFile(path, `export const acceptGroup = ${code};`);
    const filter = (await loadBatchFilters({ x: path })).get('x');
    expect(() => filter?.({ row_index: 0, epoch: 0, policy_step: null, mean_reward: null, samples: [] })).toThrow(
      message,
    );
  });
});
