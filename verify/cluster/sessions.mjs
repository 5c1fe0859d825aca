// The trainer's side of the demonstration: tasks, their results by cursor from whichever replica answers, and what they are held
// against.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ROOT } from '../../tools/setup.mjs';

const { FloeClient } = await import('../dist/client/index.js');
const { demoTasks } = await import('../dist/cli/demo/tasks.js');
const { readTaskFile } = await import('../dist/cli/task-file.js');
const { checkAgainstLedger } = await import('../dist/sim/ledger-check.js');

/** Between two tries when no replica answers at all. */
const TRY_AGAIN_MS = 200;

/** The tasks of one harness, and the scenarios that the simulated engine needs for them. */
export async function tasksOf(harness) {
  if (harness === 'pi') {
    const { tasks } = demoTasks();
    const requests = await Promise.all(
      tasks.map(async ({ name, taskFile }) => ({ ...(await readTaskFile(taskFile)), task_id: name })),
    );
    return { requests, scenarios: tasks.map((task) => task.scenarioFile) };
  }
  const source = join(ROOT, 'cluster', 'agent.mjs');
  const requests = ['harbour', 'lighthouse', 'ferry', 'crane'].map((topic) => ({
    task_id: topic,
    instruction: `Tell of a ${topic}.`,
    timeout_seconds: 300,
    agent: { harness: 'shell', custom_shell: `node agent.mjs 'Tell of a ${topic}.'` },
    runtime: { prepare: [{ type: 'upload_file', source, target: 'agent.mjs' }] },
    evaluator: { strategy: 'session_completed' },
  }));
  return { requests, scenarios: [] };
}

export class Trainer {
  constructor({ url, token }) {
    this.client = new FloeClient({ url, token });
    this.results = [];
    this.submitted = new Set();
    this.cursor = 0;
    this.retries = 0;
  }

  /** Repeats a call that any replica may take, until one has. */
  async persist(call) {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (error.retryable !== true) throw error;
        this.retries++;
        await sleep(TRY_AGAIN_MS);
      }
    }
  }

  /** Spreads the sessions over the tasks. A repeated submission is the same, because each has a task id. */
  async submit(requests, sessions) {
    for (const [index, request] of requests.entries()) {
      const num_samples = Math.floor((sessions + index) / requests.length);
      if (num_samples === 0) continue;
      const reply = await this.persist(() => this.client.submit({ ...request, num_samples }));
      for (const id of reply.session_ids) this.submitted.add(id);
    }
  }

  /** Reads results by cursor until every session has one; `each` is told how many there are. */
  async collect(each) {
    while (this.results.length < this.submitted.size) {
      await this.persist(async () => {
        for await (const result of this.client.results({ after: this.cursor })) {
          this.results.push(result);
          this.cursor = result.cursor;
          await each(this.results.length);
          if (this.results.length >= this.submitted.size) return;
        }
      });
    }
  }

  /** What came is held against what was submitted, against a second reading from the start, and against the engines' ledgers. */
  async check(ledgerDir) {
    const again = await this.persist(async () => {
      const ids = [];
      for await (const { session_id } of this.client.results({ follow: false })) ids.push(session_id);
      return ids;
    });
    const seen = new Set(this.results.map((result) => result.session_id));
    const lost = [...this.submitted].filter((id) => !seen.has(id));
    const repeated = this.results.length - seen.size + (again.length - new Set(again).size);
    const foreign = [...seen, ...again].filter((id) => !this.submitted.has(id));
    const ledger = readdirSync(ledgerDir)
      .filter((name) => name.startsWith('ledger-'))
      .flatMap((name) => readFileSync(join(ledgerDir, name), 'utf8').split('\n'))
      .filter((line) => line.endsWith('}'))
      .map((line) => JSON.parse(line));
    const report = checkAgainstLedger(this.results, ledger, 'processed');
    return {
      finished: this.results.filter((result) => result.outcome === 'completed').length,
      lost: lost.length + Math.max(0, this.submitted.size - new Set(again).size),
      duplicated: repeated + foreign.length,
      mismatches: report.mismatches,
      tokens: report.trainable_tokens,
      attempts: this.results.reduce((sum, result) => sum + result.attempt, 0),
      errors: this.results.filter((result) => result.outcome !== 'completed'),
    };
  }

  close() {
    return this.client.close();
  }
}
