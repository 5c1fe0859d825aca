import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { asFloeError, KIB } from '@floe-rl/core';
import { Command } from 'commander';
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { NO_SMALL_DISK, smallDisk } from '../../../../server/test/store/small-disk.ts';
import { registerGenerate } from '../../../src/commands/generate.ts';
import { checkAgainstLedger, startTestService, type TestService } from '../../../src/testing/index.ts';

const CLI = join(import.meta.dirname, '..', '..', '..', 'dist', 'commands', 'main.js');

type Exit = { readonly code: number | null; readonly stdout: string; readonly stderr: string };
type Line = { readonly row: number; readonly sample: number; readonly [field: string]: unknown };

const CALL =
  'curl -sf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" ' +
  `-H 'content-type: application/json' -d '{"model": "policy", "messages": [{"role": "user", "content": "{{row.question}}"}]}'`;

/** A task whose agent makes one model call, or none when the row's `command` ends the agent before it. */
const TASK = {
  instruction: '{{row.question}}',
  agent: { harness: 'shell', custom_shell: `{{row.command}} ${CALL}` },
  sampling: { seed: 3 },
  evaluator: { strategy: 'answer', config: { kind: 'exact', expected: '{{row.answer}}' } },
  metadata: { id: '{{row.id}}' },
};

describe('floe generate', () => {
  let service: TestService;
  let dir: string;
  beforeAll(async () => {
    const coin = {
      id: 'coin',
      options: ['heads', 'tails'].map((side) => ({ logit: 0, reply: [{ text: side }] })),
    };
    service = await startTestService({
      sim: {
        scenarios: [
          { name: 'sure', match: { contains: 'sure' }, rules: [{ reply: [{ text: 'heads' }] }] },
          { name: 'coin', rules: [{ reply: [{ choice: coin }] }] },
        ],
      },
    });
  });
  afterAll(() => service.close());
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-generate-'));
    return () => rm(dir, { recursive: true, force: true });
  });

  /** Runs the command in a process of its own. */
  async function floeProcess(...args: string[]): Promise<Exit> {
    const env = { ...process.env, FLOE_HOME: dir, FLOE_URL: service.url, FLOE_TOKEN: '' };
    const child = spawn(process.execPath, [CLI, 'generate', ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] });
    const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
    return { code, stdout, stderr };
  }

  /** Runs the command in this process, which is faster, with the exit codes of the real one. */
  async function floe(...args: string[]): Promise<Exit> {
    const program = new Command('floe').exitOverride();
    registerGenerate(program);
    const printed = { stdout: '', stderr: '' };
    const spies = (['stdout', 'stderr'] as const).map((name) =>
      vi.spyOn(process[name], 'write').mockImplementation((chunk) => {
        printed[name] += String(chunk);
        return true;
      }),
    );
    vi.stubEnv('FLOE_HOME', dir);
    vi.stubEnv('FLOE_URL', service.url);
    vi.stubEnv('FLOE_TOKEN', '');
    try {
      await program.parseAsync(['generate', ...args], { from: 'user' });
      return { code: 0, ...printed };
    } catch (thrown) {
      const { status, message } = asFloeError(thrown);
      return { code: status < 500 ? 2 : 1, ...printed, stderr: `${printed.stderr}${message}` };
    } finally {
      for (const spy of spies) spy.mockRestore();
      vi.unstubAllEnvs();
    }
  }

  /** Writes a data set and a template, and returns the arguments of a run over them. */
  async function input(rows: readonly (object | string)[], task: object = TASK): Promise<string[]> {
    const lines = rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row)));
    await writeFile(join(dir, 'rows.jsonl'), `${lines.join('\n')}\n`);
    await writeFile(join(dir, 'task.json'), JSON.stringify(task));
    return [join(dir, 'rows.jsonl'), '--task', join(dir, 'task.json'), '-o', join(dir, 'out')];
  }

  async function lines(name: string): Promise<Line[]> {
    const content = await readFile(join(dir, 'out', name), 'utf8');
    return content
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));
  }

  function rowsOf(count: number, question = 'heads or tails?') {
    return Array.from({ length: count }, (_, id) => ({
      id,
      question: `${question} ${id}`,
      answer: 'heads',
      command: '',
      repo: id % 2 === 0 ? 'even' : 'odd',
    }));
  }

  it('writes accepted samples with the tokens that the engine sampled, pairs and labels', async () => {
    const args = await input(rowsOf(6));
    const ended = await floeProcess(
      ...args,
      '--samples',
      '4',
      '--stratify',
      'row.repo',
      '--row-fields',
      'id,repo',
      '--json',
    );
    expect(ended).toMatchObject({ code: 0 });
    const acceptance = JSON.parse(ended.stdout.trim());
    expect(acceptance).toMatchObject({ total: { rows: 6, samples: 24 }, outcomes: { completed: 24 }, invalid_rows: 0 });
    const { accepted } = acceptance.total;
    expect(accepted).toBeGreaterThan(0);
    expect(accepted).toBeLessThan(24);
    const sft = await lines('sft.jsonl');
    expect(sft).toHaveLength(accepted);
    expect(sft[0]).toMatchObject({
      row_fields: { id: sft[0]?.row },
      reward: 1,
      prompt_message_count: 1,
      messages: [{ role: 'user' }, { role: 'assistant', content: 'heads' }],
      tools: [],
    });
    const results = [];
    for await (const result of service.client.results({ peek: true, follow: false })) results.push(result);
    const kept = results.filter(({ session_id: id }) => sft.some((line) => line.session_id === id));
    expect(kept).toHaveLength(accepted);
    expect(checkAgainstLedger(kept, service.sim.ledger.entries(), 'processed').mismatches).toEqual([]);
    for (const line of sft) {
      const trace = kept.find(({ session_id: id }) => id === line.session_id)?.trajectory?.traces[0];
      expect(line).toMatchObject({
        prompt_ids: trace?.prompt_ids,
        response_ids: trace?.response_ids,
        loss_mask: trace?.loss_mask,
      });
    }
    const verifier = await lines('verifier.jsonl');
    expect(verifier).toHaveLength(24);
    expect(verifier.filter(({ label }) => label === 1)).toHaveLength(accepted);
    for (const { text: trajectory, reward } of verifier) {
      expect(trajectory).toMatch(reward === 1 ? /\[assistant\]\nheads/ : /\[assistant\]\ntails/);
    }
    for (const pair of await lines('preference.jsonl')) {
      expect(pair).toMatchObject({ same_prompt: true, chosen: { reward: 1 }, rejected: { reward: 0 } });
    }
    expect(acceptance.groups.map(({ value }: { value: string }) => value)).toEqual(['even', 'odd']);
  });

  it('reports rows that do not fit with their lines, and generates the others', async () => {
    const [first, second] = rowsOf(2);
    const args = await input([first ?? {}, { id: 7 }, '{"id": 8', second ?? {}]);
    const ended = await floe(...args);
    expect(ended).toMatchObject({ code: 0 });
    expect(ended.stderr).toContain(
      "rows.jsonl:2: row.question: is missing, and the template's field instruction needs it",
    );
    expect(ended.stderr).toContain('rows.jsonl:3: is not JSON');
    expect(ended.stdout).toMatch(/Total +2 +2/);
    const [acceptance] = await lines('acceptance.json');
    expect(acceptance).toMatchObject({ invalid_rows: 2, problems: [{ row: 1 }, { row: 2 }] });
    expect((await lines('verifier.jsonl')).map(({ row }) => row)).toEqual([0, 3]);
  });

  it('reports a row whose task the server refuses, and generates it when it is run again', async () => {
    const rows = rowsOf(2).map((row, id) => ({ ...row, harness: id === 0 ? 'absent' : 'shell' }));
    const args = await input(rows, { ...TASK, agent: { ...TASK.agent, harness: '{{row.harness}}' } });
    const ended = await floe(...args, '--json');
    expect(ended).toMatchObject({ code: 0, stderr: expect.stringContaining('rows.jsonl:1: agent.harness: no absent') });
    const problems = [{ row: 0, message: expect.stringContaining('agent.harness: no absent') }];
    expect(JSON.parse(ended.stdout)).toMatchObject({ invalid_rows: 1, problems, total: { samples: 1 } });
    const before = service.sim.ledger.entries().length;
    expect(await floe(...args)).toMatchObject({
      stderr: expect.stringContaining('rows.jsonl:1: agent.harness: no absent'),
    });
    expect(service.sim.ledger.entries()).toHaveLength(before);
  });

  it('repeats an empty generation once', async () => {
    const flag = join(dir, 'flag');
    const once = `if [ ! -e ${flag} ]; then touch ${flag}; exit 0; fi;`;
    const rows = rowsOf(3, 'sure').map((row, id) => ({ ...row, command: ['', once, 'exit 0;'][id] }));
    const args = await input(rows);
    const ended = await floe(...args, '--json');
    expect(JSON.parse(ended.stdout)).toMatchObject({
      total: { samples: 3, accepted: 2 },
      outcomes: { completed: 2, no_completions: 1 },
      retried: 2,
    });
    const tasks = await service.client.tasks({ limit: 100 });
    const run = JSON.parse(await readFile(join(dir, 'out', 'run.json'), 'utf8')).run;
    expect(
      tasks
        .map(({ task_id: id }) => id)
        .filter((id) => id.startsWith(run))
        .sort(),
    ).toEqual([`${run}-0-0`, `${run}-1-0`, `${run}-1-0-1`, `${run}-2-0`, `${run}-2-0-1`]);
  });

  it('stops sampling a row that has enough accepted samples, and fills its files from the journal later', async () => {
    const args = await input(rowsOf(8));
    await floe(...args, '--samples', '20', '--keep', '2', '--concurrency', '3');
    const sft = await lines('sft.jsonl');
    for (let row = 0; row < 8; row++) expect(sft.filter((line) => line.row === row)).toHaveLength(2);
    const samples = await lines('verifier.jsonl');
    expect(samples.length).toBeLessThan(80);
    for (let row = 0; row < 8; row++) {
      const ofRow = samples.filter((line) => line.row === row);
      expect(ofRow.map(({ sample }) => sample)).toEqual(ofRow.map((_, index) => index));
      expect(ofRow.at(-1)).toMatchObject({ label: 1 });
    }
    const before = service.sim.ledger.entries().length;
    await floe(...args, '--samples', '20', '--keep', '1', '--split', 'train=0.5,test=0.5', '--formats', 'sft');
    expect(service.sim.ledger.entries()).toHaveLength(before);
    const [train, test] = [await lines('sft-train.jsonl'), await lines('sft-test.jsonl')];
    expect([train.length, test.length]).toEqual([4, 4]);
    expect(new Set([...train, ...test].map(({ row }) => row)).size).toBe(8);
    expect((await readdir(join(dir, 'out'))).sort()).toEqual([
      'acceptance.json',
      'journal.jsonl',
      'run.json',
      'sft-test.jsonl',
      'sft-train.jsonl',
    ]);
  });

  it('keeps the sample with the highest reward of each row', async () => {
    const args = await input(rowsOf(4));
    await floe(...args, '--best-of', '3', '--accept', 'reward>=0');
    const samples = await lines('verifier.jsonl');
    expect(samples).toHaveLength(12);
    const sft = await lines('sft.jsonl');
    expect(sft.map(({ row }) => row)).toEqual([0, 1, 2, 3]);
    for (const { row, sample, reward } of sft) {
      const rewards = samples.filter((line) => line.row === row).map((line) => line.reward);
      expect(reward).toBe(Math.max(...(rewards as number[])));
      expect(sample).toBe(rewards.indexOf(reward));
    }
  });

  it('repairs a journal that was cut off, and fetches a damaged sample from the server', async () => {
    const args = await input(rowsOf(4));
    await floe(...args, '--samples', '2');
    const sft = await readFile(join(dir, 'out', 'verifier.jsonl'), 'utf8');
    const journal = join(dir, 'out', 'journal.jsonl');
    const content = await readFile(journal, 'utf8');
    const damaged = content.split('\n');
    damaged[2] = (damaged[2] ?? '').replace('"reward":', '"Reward":');
    await writeFile(journal, damaged.join('\n').slice(0, -100));
    const before = service.sim.ledger.entries().length;
    const ended = await floe(...args, '--samples', '2');
    expect(ended).toMatchObject({ code: 0, stderr: expect.stringContaining('journal.jsonl:3 is damaged') });
    expect(service.sim.ledger.entries()).toHaveLength(before);
    expect(await readFile(join(dir, 'out', 'verifier.jsonl'), 'utf8')).toBe(sft);
  });

  it('refuses a directory of a run with other input, and names the difference', async () => {
    const rows = rowsOf(3);
    const args = await input(rows);
    await floe(...args);
    await input(rows, { ...TASK, sampling: { seed: 4 } });
    const template = await floe(...args);
    expect(template).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("template's sampling.seed was 3 and is 4"),
    });
    await input([...rows.slice(0, 2), { ...rows[2], answer: 'tails' }]);
    const changed = await floe(...args);
    expect(changed).toMatchObject({ code: 2, stderr: expect.stringContaining('rows.jsonl:3 differs') });
    await input(rows.slice(0, 2));
    expect((await floe(...args)).stderr).toMatch(/had 3 rows, and .*rows\.jsonl has 2/);
    await input(rows);
    expect((await floe(...args, '--shard', '1/2')).stderr).toContain('divided into 1 shards, not 2');
    expect(await floe(...args)).toMatchObject({ code: 0 });
  });

  it('refuses a second process on the same directory', async () => {
    const gate = join(dir, 'gate');
    execFileSync('mkfifo', [gate]);
    const args = await input(rowsOf(1, 'sure').map((row) => ({ ...row, command: `read line < ${gate};` })));
    const stop = new AbortController();
    const events = service.client.events(stop.signal);
    const subscribed = events.next();
    const first = floeProcess(...args);
    await subscribed;
    stop.abort();
    const second = await floe(...args);
    expect(second).toMatchObject({ code: 1, stderr: expect.stringMatching(/out is in use by process \d+/) });
    await writeFile(gate, 'go\n');
    expect(await first).toMatchObject({ code: 0 });
  });

  it('divides rows among shards, and merges their journals when all are complete', async () => {
    const args = await input(rowsOf(5));
    await floe(...args, '--samples', '2');
    const whole = comparable(await lines('verifier.jsonl'));
    await rm(join(dir, 'out'), { recursive: true });
    expect(await floe(...args, '--merge', '2')).toMatchObject({
      stderr: expect.stringContaining('has no run to merge'),
    });
    expect(await floe(...args, '--samples', '2', '--shard', '1/2')).toMatchObject({ code: 0 });
    const early = await floe(...args, '--samples', '2', '--merge', '2');
    expect(early).toMatchObject({ code: 1, stderr: expect.stringContaining('2 rows lack samples') });
    await floe(...args, '--samples', '2', '--merge', '2', '--partial');
    expect(await lines('verifier.jsonl')).toHaveLength(6);
    await floe(...args, '--samples', '2', '--shard', '2/2');
    expect(await floe(...args, '--samples', '2', '--merge', '2')).toMatchObject({ code: 0 });
    expect(comparable(await lines('verifier.jsonl'))).toEqual(whole);
  });

  it('continues after its disk was full', async (context) => {
    const disk = await smallDisk(48 * KIB);
    if (disk === null) return context.skip(NO_SMALL_DISK);
    try {
      const [rows = '', ...options] = await input(rowsOf(16));
      const args = [rows, ...options.slice(0, -1), disk.dir, '--samples', '2', '--formats', 'verifier'];
      const ended = await floe(...args);
      expect(ended).toMatchObject({ code: 1, stderr: expect.stringContaining('the disk is full') });
      expect(ended.stderr).toContain('run the same command');
      execFileSync('mount', ['-o', 'remount,size=8m', disk.dir]);
      expect(await floe(...args)).toMatchObject({ code: 0, stdout: expect.stringMatching(/Total +16 +32/) });
      const output = await readFile(join(disk.dir, 'verifier.jsonl'), 'utf8');
      expect(output.trim().split('\n')).toHaveLength(32);
    } finally {
      await disk.close();
    }
  });

  it('waits for a server that cannot be reached, and then reports how to continue', async () => {
    const args = await input(rowsOf(1));
    const ended = await floe(...args, '--url', 'http://127.0.0.1:1', '--server-wait', '0.2');
    expect(ended).toMatchObject({ code: 1, stderr: expect.stringContaining('waiting for the server') });
    expect(ended.stderr).toContain('run the same command when the server works');
  });

  it.each([
    [['--accept', 'reward'], '--accept "reward" is not a condition'],
    [['--formats', 'dpo'], '--formats: dpo is not one of sft, preference, verifier'],
    [['--split', 'train=0.9,test=0.2'], '--split train=0.9,test=0.2: write names with shares'],
    [['--stratify', 'repo'], '--stratify: repo is not a field of the row'],
    [['--shard', '5/4'], '--shard 5/4'],
    [['--best-of', '2', '--keep', '1'], '--best-of sets the number of samples'],
    [['--partial'], '--partial needs --merge'],
    [['--seed', 'x'], '--seed: x is not an integer'],
  ])('refuses the options %j', async (options, message) => {
    const args = await input(rowsOf(1));
    expect(await floe(...args, ...options)).toMatchObject({ code: 2, stderr: expect.stringContaining(message) });
  });

  it.each([
    [{ task_id: 'x' }, 'task_id must not be set here'],
    [{ num_samples: 4 }, 'num_samples must not be set here: use --samples'],
    [{ trainer: '{{row.id}}' }, 'trainer must be the same for all rows'],
    [{ evaluator: null }, 'has no evaluator, so no sample has a reward'],
  ])('refuses a template with %j', async (fields, message) => {
    const args = await input(rowsOf(1), { ...TASK, ...fields });
    expect(await floe(...args)).toMatchObject({ code: 2, stderr: expect.stringContaining(message) });
  });

  it('refuses a template without a placeholder, and a data set of which no row fits', async () => {
    const same = await input(rowsOf(1), { instruction: 'hi', agent: { harness: 'pi' }, evaluator: TASK.evaluator });
    await writeFile(join(dir, 'task.json'), JSON.stringify({ instruction: 'hi', agent: { harness: 'pi' } }));
    expect(await floe(...same)).toMatchObject({ code: 2, stderr: expect.stringContaining('has no placeholder') });
    const args = await input([{ id: 1 }]);
    expect(await floe(...args)).toMatchObject({ code: 2, stderr: expect.stringContaining('has no row that fits') });
  });
});

/** Returns lines without the ids of sessions, which differ between runs. */
function comparable(read: readonly Line[]): object[] {
  return read.map(({ session_id: _, ...line }) => line);
}
