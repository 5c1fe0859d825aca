// The trainer of the cluster verification. It submits tasks, reads their results by cursor from any server replica that replies, and checks
// them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger } from '@floe-rl/sim';
import { demoTasks } from '#floe/commands/demo-run';
import { readTaskFile } from '#floe/commands/yaml-file';
import { Trainer } from '../faults/trainer.ts';
import { until } from '../runner/until.ts';

/** Maximum time in ms until every session has a result. The program itself ends earlier. */
const LIMIT_MS = 3_600_000;
const POLL_INTERVAL_MS = 20;
const TOPICS = ['harbour', 'lighthouse', 'ferry', 'crane'];

export type ClusterTasks = {
  readonly requests: readonly TaskRequestInput[];
  /** Scenario files for the simulated engine, which script its replies to the tasks. */
  readonly scenarios: readonly string[];
};

/** Returns the tasks for a harness: the tasks of `floe demo` for `pi`, and short conversations for any other harness. */
export async function tasksOf(harness: string): Promise<ClusterTasks> {
  if (harness === 'pi') {
    const { tasks } = demoTasks('bubblewrap');
    const requests = await Promise.all(
      tasks.map(async ({ name, taskFile }) => ({ ...(await readTaskFile(taskFile)), task_id: name })),
    );
    return { requests, scenarios: tasks.map((task) => task.scenarioFile) };
  }
  const source = fileURLToPath(new URL('./agent.js', import.meta.url));
  const requests = TOPICS.map((topic) => ({
    task_id: topic,
    instruction: `Describe a ${topic}.`,
    timeout_seconds: 300,
    agent: { harness: 'shell', custom_shell: `node agent.mjs 'Describe a ${topic}.'` },
    runtime: { prepare: [{ type: 'upload_file' as const, source, target: 'agent.mjs' }] },
    evaluator: { strategy: 'session_completed' },
  }));
  return { requests, scenarios: [] };
}

export type CheckReport = {
  readonly finished: number;
  readonly lost: number;
  readonly duplicated: number;
  readonly mismatches: readonly object[];
  /** Number of trainable tokens in all results. */
  readonly tokens: number;
  readonly attempts: number;
  /** Results whose outcome is not `completed`. */
  readonly errors: readonly SessionResult[];
};

/** A trainer that submits tasks to a cluster, reads their results from any server replica that replies, and checks them. */
export class ClusterTrainer extends Trainer {
  constructor(urls: string, token: string) {
    super(() => urls, token);
  }

  /**
   * Submits `sessions` sessions, distributed evenly over the tasks. Each task has a fixed id, so a repeated submission adds no sessions.
   */
  async submitAll(requests: readonly TaskRequestInput[], sessions: number): Promise<void> {
    for (const [index, request] of requests.entries()) {
      const num_samples = Math.floor((sessions + index) / requests.length);
      if (num_samples > 0) await this.submit({ ...request, num_samples });
    }
  }

  /** Reads results until every session has one. Calls `onResults` with the number of results, again and again. */
  async collect(onResults: (count: number) => void): Promise<void> {
    void this.read();
    const isComplete = (): boolean => {
      onResults(this.results.size);
      return this.outstanding().length === 0 || this.violations.length > 0;
    };
    await until(isComplete, LIMIT_MS, POLL_INTERVAL_MS);
    if (this.violations.length > 0) throw new Error(this.violations.join('; '));
  }

  /** Checks the results against the submitted sessions, against a second reading of all results, and against the engines' ledgers. */
  async check(ledgerDir: string): Promise<CheckReport> {
    const secondReading = await this.untilServed(async (client) => {
      const ids: string[] = [];
      for await (const { session_id } of client.results({ follow: false })) ids.push(session_id);
      return ids;
    });
    const submitted = [...this.tasks.keys()].flatMap((id) => this.sessionsOf(id));
    const results = [...this.results.values()];
    const first = new Set(this.results.keys());
    const second = new Set(secondReading);
    const lost = submitted.filter((id) => !first.has(id)).length;
    const repeated = this.duplicates.length + (secondReading.length - second.size);
    const unknown = [...first, ...second].filter((id) => !submitted.includes(id)).length;
    const ledger = readdirSync(ledgerDir)
      .filter((name) => name.startsWith('ledger-'))
      .flatMap((name) => readFileSync(join(ledgerDir, name), 'utf8').split('\n'))
      // The last line of a ledger may be incomplete, because its engine was killed. An incomplete line is skipped.
      .filter((line) => line.endsWith('}'))
      .map((line) => JSON.parse(line));
    const { mismatches, trainable_tokens } = checkAgainstLedger(results, ledger, 'processed');
    return {
      finished: results.filter((result) => result.outcome === 'completed').length,
      lost: lost + Math.max(0, submitted.length - second.size),
      duplicated: repeated + unknown,
      mismatches,
      tokens: trainable_tokens,
      attempts: results.reduce((sum, result) => sum + result.attempt, 0),
      errors: results.filter((result) => result.outcome !== 'completed'),
    };
  }
}
