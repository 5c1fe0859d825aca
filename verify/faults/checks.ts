// Checks the guarantees that the service gave to a trainer. The checks use the results that the trainer received, the tokens that the
// engine sampled, and the processes and files that remain on the machine.
import { readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { sleep, systemClock } from '@floe-rl/core';
import type { Outcome, SessionResult } from '@floe-rl/core/schema';
import { checkAgainstLedger, type LedgerCheckOptions, type LedgerEntry } from '@floe-rl/sim';
import { processesWith } from '../services/processes.ts';
import type { Trainer } from './trainer.ts';

/** A result with one of these outcomes must have the reward `null`, because the agent's work was not evaluated. */
const WITHOUT_REWARD: readonly Outcome[] = ['infra_error', 'engine_error', 'cancelled', 'env_error', 'verifier_error'];
/** Maximum time in ms after which the processes and files of ended sessions must have disappeared. */
const LEAK_WAIT_MS = 10_000;
const POLL_INTERVAL_MS = 100;
/** Maximum number of token mismatches that are reported one by one. Further mismatches are only counted. */
const MAX_LISTED_MISMATCHES = 20;
/** Maximum number of journal files (segments) that a gateway may keep: the one being written and the one before it. */
const MAX_JOURNAL_SEGMENTS = 2;

/** Name of the directory in which a bubblewrap runtime keeps the files that all its sandboxes share. */
const SHARED_FILES = '.share';

/** Guarantees that the service violated, by kind. Each list holds one sentence for each violation. */
export type Findings = {
  /** Sessions that the service acknowledged but that have no result. */
  readonly lost: readonly string[];
  /** Sessions for which the trainer received two results. */
  readonly duplicated: readonly string[];
  /** Processes and files that remained after their sessions had ended. */
  readonly leaked: readonly string[];
  /** Violations of guarantees that the other three lists do not cover. */
  readonly wrong: readonly string[];
};

export function checkPromises(
  trainer: Trainer,
  ledger: readonly LedgerEntry[],
  // By default, trained tokens without a policy version are accepted. In chat mode the proxy asks the engine for its version in a separate
  // request, which fails when the connection breaks.
  { unknownVersions = 'allow' }: LedgerCheckOptions,
): Omit<Findings, 'leaked'> {
  const promised = new Set(trainer.promised());
  const lost = trainer.outstanding().map((id) => `session ${id} has no result`);
  const wrong = [...trainer.violations, ...[...trainer.results.values()].flatMap((result) => checkResult(result))];
  for (const [id, { task_id }] of trainer.results) {
    // Every result must belong to a session or task that the service acknowledged. Sessions that a refill added are known only by their
    // task.
    if (!promised.has(id) && !trainer.tasks.has(task_id)) wrong.push(`result for the unknown session ${id}`);
  }
  const verifiable = [...trainer.results.values()].filter(({ session_id }) => !trainer.undetectable.has(session_id));
  const { mismatches } = checkAgainstLedger(verifiable, ledger, 'processed', { unknownVersions });
  for (const mismatch of mismatches.slice(0, MAX_LISTED_MISMATCHES)) wrong.push(`tokens: ${JSON.stringify(mismatch)}`);
  const unlisted = mismatches.length - MAX_LISTED_MISMATCHES;
  if (unlisted > 0) wrong.push(`tokens: ${unlisted} more mismatches`);
  return { lost, duplicated: trainer.duplicates, wrong };
}

function checkResult({ session_id, status, outcome, reward, trajectory }: SessionResult): string[] {
  const wrong: string[] = [];
  if (status === 'CANCELLED' && outcome !== 'cancelled') wrong.push(`session ${session_id}: ${status} but ${outcome}`);
  if (WITHOUT_REWARD.includes(outcome) && reward !== null) {
    wrong.push(`session ${session_id}: ${outcome} with reward ${reward}`);
  }
  if (outcome === 'completed' && trajectory === null)
    wrong.push(`session ${session_id} completed without a trajectory`);
  return wrong;
}

/**
 * Waits until no process has `marker` in its environment and `stateDirs` contain no files of sessions, for at most {@link LEAK_WAIT_MS}.
 * Returns one sentence for each process or file that remains.
 */
export async function checkLeaks(marker: string, stateDirs: readonly string[]): Promise<string[]> {
  const deadlineMs = systemClock.monotonicMs() + LEAK_WAIT_MS;
  for (;;) {
    const leaks = [...processesWith(marker).map((pid) => `process ${pid}`), ...(await filesIn(stateDirs))];
    if (leaks.length === 0 || systemClock.monotonicMs() > deadlineMs) return leaks;
    await sleep(systemClock, POLL_INTERVAL_MS);
  }
}

/**
 * Returns one entry for each sandbox, socket and attempt record of a session that remains in the state directories, and one for each
 * journal with more than {@link MAX_JOURNAL_SEGMENTS} segments.
 */
async function filesIn(stateDirs: readonly string[]): Promise<string[]> {
  const files: string[] = [];
  for (const dir of stateDirs) {
    for (const part of ['sockets', 'attempts']) files.push(...(await entriesOf(join(dir, part))));
    // Each gateway process has one folder for each runtime back end, which exists as long as the process runs. Only the contents of these
    // folders count as leaks, without the files that all sandboxes share.
    for (const backend of await entriesOf(join(dir, 'sessions'))) {
      files.push(...(await entriesOf(backend)).filter((path) => basename(path) !== SHARED_FILES));
    }
    const segments = await entriesOf(join(dir, 'journal'));
    if (segments.length > MAX_JOURNAL_SEGMENTS) files.push(`${segments.length} journal segments in ${dir}`);
  }
  return files;
}

async function entriesOf(dir: string): Promise<string[]> {
  const names = await readdir(dir).catch(() => []);
  return names.map((name) => join(dir, name));
}
