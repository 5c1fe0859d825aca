import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { MIB } from '@floe-rl/core';
import type { SessionResult } from '@floe-rl/core/schema';
import { rowText } from '@floe-rl/data';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { madeUpSessions } from '../../../../../verify/datasets/sessions.ts';
import { NO_SMALL_DISK, smallDisk } from '../../../../server/test/store/small-disk.ts';
import { startTestService, type TestService } from '../../../src/testing/index.ts';

const CLI = join(import.meta.dirname, '..', '..', '..', 'dist', 'commands', 'main.js');
const SAMPLES = 4;

type Exit = { readonly code: number | null; readonly stdout: string; readonly stderr: string };

describe('floe export and floe import', () => {
  let service: TestService;
  let dir: string;
  const tasks: string[] = [];

  beforeAll(async () => {
    const coin = { id: 'coin', options: ['heads', 'tails'].map((side) => ({ logit: 0, reply: [{ text: side }] })) };
    service = await startTestService({
      sim: { scenarios: [{ name: 'coin', rules: [{ reply: [{ choice: coin }] }] }] },
    });
    for (const repo of ['a/a', 'b\u001b[31m']) {
      const call =
        'curl -sf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" ' +
        '-H \'content-type: application/json\' -d \'{"model": "policy", "messages": [{"role": "user", "content": "coin"}]}\'';
      const { task_id } = await service.client.submit({
        instruction: '',
        num_samples: SAMPLES,
        agent: { harness: 'shell', custom_shell: call },
        evaluator: { strategy: 'answer', config: { kind: 'exact', expected: 'heads' } },
        metadata: { data_source: repo, split: repo === 'a/a' ? 'test' : 'train' },
      });
      await service.client.endedTask(task_id);
      tasks.push(task_id);
    }
  });
  afterAll(() => service.close());
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-export-'));
    return () => rm(dir, { recursive: true, force: true });
  });

  /** Runs a command in a process of its own. */
  async function floe(...args: string[]): Promise<Exit> {
    const env = { ...process.env, FLOE_HOME: dir, FLOE_URL: service.url, FLOE_TOKEN: '' };
    const child = spawn(process.execPath, [CLI, ...args], { cwd: dir, env, stdio: ['ignore', 'pipe', 'pipe'] });
    const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
    return { code: code as number, stdout, stderr };
  }

  function linesOf(content: string): Record<string, unknown>[] {
    return content
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
  }

  /** Returns results by session. Fields that a set adds or leaves out are removed. */
  function bySession(results: readonly object[]): Record<string, unknown> {
    return Object.fromEntries(
      results.map((result) => {
        const { cursor: _, origin: __, ...rest } = result as SessionResult & { origin: unknown };
        return [rest.session_id, rest];
      }),
    );
  }

  it.each(['jsonl', 'parquet'])(
    'writes the sessions of a filter as %s and reads them back as results',
    async (encoding) => {
      const results: SessionResult[] = [];
      for await (const result of service.client.results({ peek: true, follow: false })) results.push(result);
      const args = ['export', '--where', 'harness=shell', '-f', 'sessions', '--encoding', encoding, '-o', 'set'];
      const exported = await floe(...args);
      expect(exported.stderr).toContain(`Wrote ${2 * SAMPLES} sessions`);
      expect(exported.code).toBe(0);
      expect(exported.stdout).toContain('a/a');
      expect(exported.stdout).not.toContain('\u001b[31m');
      const imported = await floe('import', 'set');
      expect(imported.stderr).toContain(`Read ${2 * SAMPLES} sessions`);
      expect(bySession(linesOf(imported.stdout))).toEqual(bySession(results));
    },
  );

  it('divides by a field, counts by another, and does not collect results', async () => {
    const args = [
      'export',
      ...tasks,
      '-f',
      'sessions',
      '--split',
      'origin.split',
      '--by',
      'outcome',
      '--json',
      '-o',
      'set',
    ];
    const { stdout } = await floe(...args);
    const manifest = JSON.parse(stdout);
    expect(manifest.splits).toEqual({ train: SAMPLES, test: SAMPLES });
    expect(manifest.acceptance.groups).toMatchObject([{ value: 'completed', sessions: 2 * SAMPLES, tasks: 2 }]);
    expect((await readdir(join(dir, 'set', 'data'))).sort()).toEqual([
      'test-00000-of-00001.jsonl',
      'train-00000-of-00001.jsonl',
    ]);
    const { trainers } = await service.client.status();
    expect(trainers[0]?.uncollected_results).toBe(2 * SAMPLES);
  });

  it('writes the format of a trainer from a set, without a server', async () => {
    await floe('export', ...tasks, '-f', 'sessions', '-o', 'set');
    const fromSet = await floe('export', '--from', 'set', '-f', 'slime', '--url', 'http://127.0.0.1:1');
    const fromServer = await floe('export', '--where', 'harness=shell', '-f', 'slime');
    expect(linesOf(fromSet.stdout)).toHaveLength(2 * SAMPLES);
    expect(fromSet.stdout).toBe(fromServer.stdout);
  });

  it('refuses a folder with files, an unknown filter, and a set that is not complete', async () => {
    await floe('export', ...tasks, '-f', 'sessions', '-o', 'set');
    const again = await floe('export', ...tasks, '-f', 'sessions', '-o', 'set');
    expect(again).toMatchObject({ code: 2, stderr: expect.stringContaining('exists and has files') });
    const filter = await floe('export', '--where', 'colour=red', '-f', 'sessions', '-o', 'other');
    expect(filter).toMatchObject({ code: 2, stderr: expect.stringContaining('the names are task, trainer') });
    await rm(join(dir, 'set', 'floe.json'));
    const half = await floe('import', 'set');
    expect(half).toMatchObject({ code: 1, stderr: expect.stringContaining('is not a complete set'), stdout: '' });
  });

  it('leaves nothing on a full disk, and a clear error', async (test) => {
    const disk = await smallDisk(MIB);
    if (disk === null) return test.skip(NO_SMALL_DISK);
    try {
      const rows = [...madeUpSessions({ seed: 2, tasks: 20, samples: 8, tokens: 2000 })];
      await writeFile(join(dir, 'results.jsonl'), rows.map((row) => `${rowText(row)}\n`).join(''));
      for (const encoding of ['jsonl', 'parquet']) {
        const args = ['export', '--from', 'results.jsonl', '-f', 'sessions', '--encoding', encoding];
        const { code, stderr } = await floe(...args, '-o', join(disk.dir, 'set'));
        expect(stderr).toContain('the disk is full');
        expect(code).toBe(1);
        expect(await readdir(disk.dir)).toEqual([]);
      }
    } finally {
      await disk.close();
    }
  });

  it('reads the card of a set as YAML and Markdown without markup of a task', async () => {
    await floe('export', ...tasks, '-f', 'sft', '-o', 'set');
    const card = await readFile(join(dir, 'set', 'README.md'), 'utf8');
    expect(card).toContain('path:\n          - data/train-00000-of-00001.jsonl');
    expect(card).not.toContain('\u001b');
  });
});
