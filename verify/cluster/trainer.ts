// The trainer of the cluster verification. It submits tasks, reads their results by cursor from any server replica that replies, and checks
// them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeClient } from '@floe-rl/client';
import { FloeError, sleep, systemClock } from '@floe-rl/core';
import type { SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { checkAgainstLedger } from '@floe-rl/sim';
import { demoTasks } from '#floe/commands/demo-run';
import { readTaskFile } from '#floe/commands/yaml-file';

/** Milliseconds to wait before a call is repeated because no server replica has replied. */
const RETRY_PAUSE_MS = 200;
const TOPICS = ['harbour', 'lighthouse', 'ferry', 'crane'];

export type ClusterTasks = {
  readonly requests: readonly TaskRequestInput[];
  /** Scenario files for the simulated engine, which script its replies to the tasks. */
  readonly scenarios: readonly string[];
};

/** Returns the tasks for a harness: those of `floe demo` for `pi`, and short conversations for any other harness. */
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

export class ClusterTrainer {
  readonly client: FloeClient;
  private readonly results: SessionResult[] = [];
  private readonly submitted = new Set<string>();
  private cursor = 0;

  constructor(url: string, token: string) {
    this.client = new FloeClient({ url, token });
  }

  /** Repeats a call until a server replica has served it. Throws an error at once when repeating the call cannot resolve it. */
  async untilServed<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (!FloeError.is(error) || !error.retryable) throw error;
        await sleep(systemClock, RETRY_PAUSE_MS);
      }
    }
  }

  /**
   * Submits `sessions` sessions, distributed evenly over the tasks. Each task has a fixed id, so a repeated submission adds no sessions.
   */
  async submit(requests: readonly TaskRequestInput[], sessions: number): Promise<void> {
    for (const [index, request] of requests.entries()) {
      const num_samples = Math.floor((sessions + index) / requests.length);
      if (num_samples === 0) continue;
      const reply = await this.untilServed(() => this.client.submit({ ...request, num_samples }));
      for (const id of reply.session_ids) this.submitted.add(id);
    }
  }

  /** Reads results by cursor until every session has one. After each result, it calls `onResult` with the number of results so far. */
  async collect(onResult: (count: number) => void): Promise<void> {
    while (this.results.length < this.submitted.size) {
      await this.untilServed(async () => {
        for await (const result of this.client.results({ after: this.cursor })) {
          this.results.push(result);
          this.cursor = result.cursor ?? this.cursor;
          onResult(this.results.length);
          if (this.results.length >= this.submitted.size) return;
        }
      });
    }
  }

  /** Checks the results against the submitted sessions, against a second reading of all results, and against the engines' ledgers. */
  async check(ledgerDir: string): Promise<CheckReport> {
    const secondReading = await this.untilServed(async () => {
      const ids: string[] = [];
      for await (const { session_id } of this.client.results({ follow: false })) ids.push(session_id);
      return ids;
    });
    const first = new Set(this.results.map((result) => result.session_id));
    const second = new Set(secondReading);
    const lost = [...this.submitted].filter((id) => !first.has(id)).length;
    const repeated = this.results.length - first.size + (secondReading.length - second.size);
    const unknown = [...first, ...second].filter((id) => !this.submitted.has(id)).length;
    const ledger = readdirSync(ledgerDir)
      .filter((name) => name.startsWith('ledger-'))
      .flatMap((name) => readFileSync(join(ledgerDir, name), 'utf8').split('\n'))
      // The last line of a ledger may be incomplete, because its engine was killed. An incomplete line is skipped.
      .filter((line) => line.endsWith('}'))
      .map((line) => JSON.parse(line));
    const { mismatches, trainable_tokens } = checkAgainstLedger(this.results, ledger, 'processed');
    return {
      finished: this.results.filter((result) => result.outcome === 'completed').length,
      lost: lost + Math.max(0, this.submitted.size - second.size),
      duplicated: repeated + unknown,
      mismatches,
      tokens: trainable_tokens,
      attempts: this.results.reduce((sum, result) => sum + result.attempt, 0),
      errors: this.results.filter((result) => result.outcome !== 'completed'),
    };
  }

  close(): Promise<void> {
    return this.client.close();
  }
}
