// Checks what a trainer was promised against what it got, what the engine sampled and what is left on the machine.
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkAgainstLedger } from '../dist/sim/ledger-check.js';
import { processesWith } from './child.mjs';

/** Failures of the infrastructure must never look like a reward. */
const INFRA = new Set(['infra_error', 'engine_error', 'cancelled', 'env_error', 'verifier_error']);
/** How long resources may take to go once everything is quiet. */
const LEAK_WAIT_MS = 10_000;

/**
 * `{ lost, duplicated, leaked, wrong }`, each a list of sentences. `lost`: promised sessions without a result (I1). `duplicated`: sessions with
 * two (I2). `wrong`: everything else of I2 to I6 and I9.
 */
export function checkPromises(trainer, ledger, { unknownVersions = 'allow' } = {}) {
  const promised = new Set(trainer.promised());
  const lost = trainer.outstanding().map((id) => `session ${id} has no result`);
  const duplicated = trainer.wrongs.filter((text) => text.includes('two'));
  const wrong = trainer.wrongs.filter((text) => !text.includes('two'));
  for (const [id, { result }] of trainer.results) {
    // I3. A submit whose reply was lost is repeated, so every result belongs to a task that was acknowledged in the end; refills belong to it too.
    if (!promised.has(id) && !trainer.tasks.has(result.task_id)) wrong.push(`result for unknown session ${id}`);
    // I4 is about what comes after the acknowledgement: the summary of a cancelled session never says success.
    if (result.status === 'CANCELLED' && result.outcome !== 'cancelled')
      wrong.push(`session ${id}: ${result.status} but ${result.outcome}`);
    if (INFRA.has(result.outcome) && result.reward !== null)
      wrong.push(`session ${id}: ${result.outcome} with reward ${result.reward}`);
    if (result.outcome === 'completed' && result.trajectory === null)
      wrong.push(`session ${id} completed without a trajectory`);
  }
  const results = [...trainer.results].filter(([id]) => !trainer.believed.has(id)).map(([, { result }]) => result);
  // In chat mode weights are asked for by themselves: over a connection that is broken just then they stay unknown.
  const report = checkAgainstLedger(results, ledger, 'processed', { unknownVersions });
  for (const mismatch of report.mismatches.slice(0, 20)) wrong.push(`tokens: ${JSON.stringify(mismatch)}`);
  if (report.mismatches.length > 20) wrong.push(`tokens: ${report.mismatches.length - 20} more mismatches`);
  return { lost, duplicated, wrong, tokens: report.trainable_tokens };
}

/** What is left of sessions on this machine: processes with the marker, files of sessions below `stateDirs`. Waits for it to go. */
export async function checkLeaks(marker, stateDirs, { live = [] } = {}) {
  let found = [];
  for (const deadline = performance.now() + LEAK_WAIT_MS; ; await sleep(100)) {
    found = [
      ...processesWith(marker)
        .filter((pid) => !live.includes(pid))
        .map((pid) => `process ${pid}`),
      ...(await filesOf(stateDirs)),
    ];
    if (found.length === 0 || performance.now() > deadline) return found;
  }
}

/** Sandboxes, sockets and attempt records of sessions that are over. The journal keeps one open segment. */
async function filesOf(stateDirs) {
  const found = [];
  for (const dir of stateDirs) {
    for (const part of ['sockets', 'attempts']) found.push(...(await inside(join(dir, part))));
    // A folder for each back end of each process; those of live processes stay.
    for (const backend of await inside(join(dir, 'sessions'))) found.push(...(await inside(backend)));
    const segments = await readdir(join(dir, 'journal')).catch(() => []);
    if (segments.length > 2) found.push(`${segments.length} journal segments in ${dir}`);
  }
  return found;
}

async function inside(dir) {
  const names = await readdir(dir).catch(() => []);
  return names.map((name) => join(dir, name));
}
