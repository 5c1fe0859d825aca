// `npm run verify -- generate`: kills `floe generate`, the server and the gateway at random moments, resumes, and compares the output files
// with the files of a run without kills. Options: --kills N (default 100), --rows N (of the data set), --seed N, --quick (10 kills), --json.
//
// Ends with "generate: K kills, R rows, lost 0, doubled 0".

import { execFileSync } from 'node:child_process';
import { mkdir, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeClient } from '@floe-rl/client';
import { seededRandom } from '@floe-rl/core';
import { FLOE } from '../runner/floe.ts';
import { readOptions } from '../runner/options.ts';
import { Progress } from '../runner/progress.ts';
import { conclude } from '../runner/report.ts';
import { interrupt, type Resumable, runToEnd } from './interruption.ts';
import type { CallClass } from './kill-points.ts';
import { checkJournal, compareOutputs, doubledSessions, readOutput } from './outputs.ts';
import { type ProcessKind, Service } from './service.ts';
import { pick, randomIndex } from './traffic.ts';

const { options, json } = readOptions({
  kills: { type: 'string' },
  rows: { type: 'string' },
  seed: { type: 'string', default: '1' },
  quick: { type: 'boolean', default: false },
});
const KILLS = Number(options.kills ?? (options.quick ? 10 : 100));
const ROWS = Number(options.rows ?? (options.quick ? 12 : 40));
/** Number of kills of one run. Then the run is resumed without kills, and its output is compared. */
const KILLS_PER_RUN = 20;
/** Share of the kills that also hit the server or the gateway. */
const SERVICE_SHARE = 0.2;
/** Share of the kills after which the end of the journal is cut off, as in a crash of the machine. */
const CUT_SHARE = 0.2;
/** When strace is installed: share of the kills of the generator that happen before a random system call. */
const CALL_SHARE = 0.4;
/** The generator is killed before one of its first `count` system calls of a class. It makes fewer calls than that until its first results. */
const CALLS: readonly { readonly kind: CallClass; readonly count: number }[] = [
  { kind: 'sync', count: 40 },
  { kind: 'send', count: 60 },
];
/** Maximum time in ms from the start of the generator to its kill. About every second kill comes before its first results. */
const MAX_KILL_MS = 6_000;
/** Maximum number of findings of each run that are printed. */
const MAX_TEXTS = 10;

const random = seededRandom(Number(options.seed));
const progress = new Progress();

const AGENT =
  'sleep 0.2; curl -sf -m 60 "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" ' +
  `-H 'content-type: application/json' -d '{"model": "policy", "messages": [{"role": "user", "content": "{{row.question}}"}]}'`;

/**
 * Writes a data set and a task template. Most rows fit the template, the agents of some rows make no model call, and some rows lack fields of
 * the template.
 */
async function writeInput(dir: string): Promise<void> {
  const rows = Array.from({ length: ROWS }, (_, row) => {
    if (row % 17 === 5) return { id: row };
    const start = row % 13 === 7 ? 'exit 0;' : '';
    return { id: row, start, question: `Heads or tails? ${row}`, answer: 'heads', repo: `repo-${row % 3}` };
  });
  await writeFile(join(dir, 'rows.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  const task = {
    instruction: '{{row.question}}',
    max_attempts: 10,
    timeout_seconds: 60,
    agent: { harness: 'shell', custom_shell: `{{row.start}} ${AGENT}` },
    sampling: { seed: 1 },
    evaluator: { strategy: 'answer', config: { kind: 'exact', expected: '{{row.answer}}' } },
  };
  await writeFile(join(dir, 'task.json'), JSON.stringify(task));
}

/** Returns the command of a run whose output is in the folder `name`. */
function generator(service: Service, name: string): Resumable {
  const { dir } = service;
  const args = [join(dir, 'rows.jsonl'), '--task', join(dir, 'task.json'), '-o', join(dir, name)];
  const policy = ['--samples', '4', '--keep', '2', '--concurrency', '8', '--row-fields', 'id'];
  const parts = ['--split', 'train=0.8,test=0.2', '--stratify', 'row.repo'];
  return {
    command: [process.execPath, FLOE, 'generate', ...args, ...policy, ...parts, '--url', service.url()],
    env: { FLOE_HOME: join(dir, 'home'), FLOE_TOKEN: '' },
  };
}

/** Removes a random number of bytes of the last line of a journal. */
async function cutJournal(path: string): Promise<void> {
  const file = await open(path, 'r+').catch(() => null);
  if (file === null) return;
  try {
    const content = await file.readFile();
    const start = content.lastIndexOf(0x0a, content.length - 2) + 1;
    await file.truncate(start + randomIndex(random, content.length - start + 1));
  } finally {
    await file.close();
  }
}

async function restart(service: Service, kind: ProcessKind): Promise<void> {
  await service.child(kind, 0).kill();
  await service.start(kind, 0);
}

const hasStrace = ((): boolean => {
  try {
    execFileSync('strace', ['-V'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
})();

/** Kills a run up to `limit` times, then lets it end. Returns the number of kills. */
async function killRun(service: Service, name: string, limit: number): Promise<number> {
  const run = generator(service, name);
  for (let kills = 0; kills < limit; ) {
    progress.show(`${name}: ${kills} of ${limit} kills`);
    const isServiceKill = random() < SERVICE_SHARE;
    const calls = hasStrace && random() < CALL_SHARE ? pick(random, CALLS) : null;
    const ending = interrupt(run, random, MAX_KILL_MS, calls);
    if (isServiceKill) {
      await restart(service, random() < 0.5 ? 'server' : 'gateway');
      kills++;
    }
    if ((await ending) === 'finished') return kills;
    kills++;
    if (random() < CUT_SHARE) await cutJournal(join(service.dir, name, 'journal.jsonl'));
  }
  await runToEnd(run);
  return limit;
}

async function main(): Promise<void> {
  const coin = { id: 'coin', options: ['heads', 'tails'].map((side) => ({ logit: 0, reply: [{ text: side }] })) };
  const service = await Service.start({
    sim: { scenarios: [{ name: 'coin', rules: [{ reply: [{ choice: coin }] }] }] },
  });
  const client = new FloeClient({ url: service.url(), retrySeconds: 60 });
  const total = { kills: 0, rows: 0, lost: 0, doubled: 0 };
  try {
    await mkdir(join(service.dir, 'home'), { recursive: true });
    await writeInput(service.dir);
    await runToEnd(generator(service, 'undisturbed'));
    const expected = await readOutput(join(service.dir, 'undisturbed'));
    for (let number = 1; total.kills < KILLS; number++) {
      const name = `run-${number}`;
      const kills = await killRun(service, name, Math.min(KILLS_PER_RUN, KILLS - total.kills));
      const dir = join(service.dir, name);
      const findings = [compareOutputs(expected, await readOutput(dir)), await checkJournal(dir)];
      const lost = findings.flatMap((difference) => difference.lost);
      const twice = [...findings.flatMap(({ doubled }) => doubled), ...(await doubledSessions(client, dir))];
      progress.print(`${name}: ${kills} kills, ${expected.size} records, lost ${lost.length}, doubled ${twice.length}`);
      for (const text of lost.slice(0, MAX_TEXTS)) progress.print(`  lost: ${text.slice(0, 200)}`);
      for (const text of twice.slice(0, MAX_TEXTS)) progress.print(`  doubled: ${text.slice(0, 200)}`);
      total.kills += kills;
      total.rows += ROWS;
      total.lost += lost.length;
      total.doubled += twice.length;
    }
  } finally {
    await client.close();
    await service.close();
  }
  const { kills, rows, lost, doubled } = total;
  const line = `generate: ${kills} kills, ${rows} rows, lost ${lost}, doubled ${doubled}`;
  conclude({ line, keys: total, isPassed: lost + doubled === 0, json });
}

await main();
