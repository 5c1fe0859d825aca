import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { sessionSummary } from '@floe-rl/core/protocol';
import type { SessionResult } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../tools/repository.ts';
import { write as writeSet } from '../../../data/test/session-sets/sets.ts';
import { openView, type View } from '../../src/commands/view.ts';

let dir: string;
const open: { close(): Promise<void> }[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'floe-view-test-'));
});
afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
  rmSync(dir, { recursive: true, force: true });
});

function result(number: number, fields: { task?: string; sample?: number; reward?: number } = {}): SessionResult {
  const { task = 'task', sample = number, reward = 1 } = fields;
  const attempt = { session_id: `ses_${number}`, task_id: task, sample_index: sample, attempt: 1, epoch: 1 };
  return { ...sessionSummary(attempt, 'completed', { reward, metadata: { data_source: 'math' } }), trajectory: null };
}

function write(name: string, results: readonly SessionResult[]): string {
  const path = join(dir, name);
  writeFileSync(path, results.map((one) => `${JSON.stringify(one)}\n`).join(''));
  return path;
}

async function show(...files: string[]): Promise<{ view: View; client: FloeClient }> {
  const view = await openView(files, 0);
  open.push(view);
  const [, token] = /sign-in\/([^/]+)/.exec(view.link) ?? [];
  const client = new FloeClient({ url: new URL(view.link).origin, token: token ?? '' });
  open.push(client);
  return { view, client };
}

describe('a view of files', () => {
  it('serves the sessions on the routes of a server, with filters, sums and the file of each', async () => {
    const file = write('a.jsonl', [result(0, { reward: 0 }), result(1), result(2, { task: 'other', sample: 0 })]);
    const { view, client } = await show(file);
    expect(view.sessions).toBe(3);
    expect(view.link).toMatch(/#\/sign-in\/[\w-]+\/sessions$/);
    const found: string[] = [];
    for await (const { session_id: id } of client.endedSessions({ source: ['math'], minReward: 1 })) found.push(id);
    expect(found.sort()).toEqual(['ses_1', 'ses_2']);
    expect(await client.sessionTotals()).toMatchObject([{ sessions: 3, rewards: 3, reward_mean: 2 / 3 }]);
    const session = await client.session('ses_1');
    expect(session.summary?.metadata.recording).toMatchObject({ file: `${file}:2`, format: 'floe' });
    expect(await client.task('task')).toMatchObject({ status: 'completed', total_sessions: 2, completed_sessions: 2 });
  });

  it('shows the sessions of a data set in Parquet, with what it states of their tasks', async () => {
    const set = join(dir, 'set');
    const origin = { trainer: 'policy', harness: 'codex', agent: null, source: 'math', split: null };
    const row = { ...result(0), origin: { ...origin, ended_at: '2026-11-26T12:00:00.000Z' } };
    await writeSet(set, [row], { encoding: 'parquet' });
    const { client } = await show(set);
    const { value } = await client.endedSessions().next();
    expect(value).toMatchObject({ session_id: 'ses_0', harness: 'codex', ended_at: row.origin.ended_at });
  });

  it('shows a session once that several files have, and gives samples with one index different ones', async () => {
    const files = [write('a.jsonl', [result(0), result(1)]), write('b.jsonl', [result(1), result(2, { sample: 0 })])];
    const { view, client } = await show(...files);
    expect(view.sessions).toBe(3);
    expect(view.notes).toEqual(['1 sessions are in the files more than once; the first of each is shown.']);
    const sessions = await client.sessions('task');
    expect(sessions.map((one) => [one.session_id, one.sample_index])).toEqual([
      ['ses_0', 0],
      ['ses_1', 1],
      ['ses_2', 2],
    ]);
  });

  it('finds sessions by words of their messages', async () => {
    const { client } = await show(join(repositoryRoot(), 'verify', 'fixtures', 'recordings'));
    const found: (number | null)[] = [];
    for await (const { reward } of client.endedSessions({ text: '"the answer is"' })) found.push(reward);
    expect(found).toEqual([1]);
  });

  it('opens a single session directly', async () => {
    const { view } = await show(write('one.jsonl', [result(0)]));
    expect(view.link).toMatch(/\/sessions\/ses_0$/);
  });

  it('cannot be changed, and answers nothing without its token', async () => {
    const { view, client } = await show(write('a.jsonl', [result(0)]));
    const submitted = client.submit({ instruction: '', agent: { harness: 'shell', custom_shell: 'true' } });
    await expect(submitted).rejects.toMatchObject({ code: 'forbidden' });
    await expect(client.cancel('task')).rejects.toMatchObject({ code: 'forbidden' });
    const stranger = new FloeClient({ url: new URL(view.link).origin, token: null });
    open.push(stranger);
    await expect(stranger.session('ses_0')).rejects.toMatchObject({ code: 'unauthorized' });
  });

  it('leaves nothing in the temporary directory, also when a file is broken', async () => {
    const temporary = process.env.TMPDIR;
    process.env.TMPDIR = mkdtempSync(join(dir, 'temporary-'));
    try {
      const view = await openView([write('a.jsonl', [result(0)])], 0);
      expect(readdirSync(process.env.TMPDIR)).toHaveLength(1);
      await view.close();
      writeFileSync(join(dir, 'cut.jsonl'), `${JSON.stringify(result(1))}\n{"session`);
      await expect(openView([join(dir, 'cut.jsonl')], 0)).rejects.toThrow('cut.jsonl:2: is not JSON');
      expect(readdirSync(process.env.TMPDIR)).toEqual([]);
    } finally {
      process.env.TMPDIR = temporary;
      if (temporary === undefined) delete process.env.TMPDIR;
    }
  });
});
