// One cell: builds its task, runs the unchanged program against the simulated engine, and checks what came of it.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { checkAgainstLedger } from '../dist/sim/ledger-check.js';
import { accountProblems, factsOf, labelProblems, mismatchProblems, taskProblems, workProblems } from './checks.mjs';
import { completionsOf, runTask, startStack } from './stack.mjs';

/** Of a session's active time; the slowest harness needs about 10 s for a cell, and this machine may be busy. */
export const SESSION_SECONDS = 150;
/** Of a whole cell: a session and the time that it may wait. */
const CELL_MS = 240_000;

const COMMIT =
  'git init -q . && git add -A && git -c user.name=floe -c user.email=floe@localhost commit -q --allow-empty -m Start';

/**
 * The task that a cell of a row submits. `made`: what the cell's `build` returned; `task`: fields that another way to capture or to
 * build wants.
 */
export function taskOf({ row, variant, dialect, task = {} }, made) {
  return {
    instruction: made.instruction,
    timeout_seconds: SESSION_SECONDS,
    max_attempts: 1,
    agent: {
      harness: row.harness,
      dialect,
      settings: { ...variant.settings, ...made.settings },
      ...row.agent?.(dialect),
    },
    sampling: made.sampling ?? {},
    ...task,
    runtime: {
      prepare: [...Object.entries({ ...row.files, ...made.files }).map(prepareFile), { type: 'exec', command: COMMIT }],
    },
    evaluator: {
      strategy: 'test_on_output',
      config: { test_command: made.grader, expected_output_json: { task: 'PASSED' } },
    },
  };
}

function prepareFile([target, content]) {
  if (typeof content === 'string') return { type: 'write_file', target, content };
  return { type: 'exec', command: `echo ${content.toString('base64')} | base64 -d > ${target}` };
}

/**
 * Runs one planned cell. Never rejects: what goes wrong is a problem in the report
 * `{ problems, mismatches, seconds, kept, sessionId }`, and where there was a result `{ ledger, facts }`; `kept` names the directory
 * with what is needed to look into it. A planned cell may name `kind`, the engine's API, and `task`, fields of the task.
 */
export async function runCell(planned, cell, { backend, keepDir, keepAlways = false, signal }) {
  const started = performance.now();
  const ending = AbortSignal.any([signal, AbortSignal.timeout(CELL_MS)]);
  const seen = { problems: [], mismatches: 0, sessionId: null };
  let stack = null;
  let material = {};
  try {
    const made = cell.build(planned);
    stack = await startStack({
      backend,
      kind: planned.kind,
      sim: { ...planned.row.sim, scenarios: made.scenarios, ...made.sim },
    });
    stack.sim.setFaults(made.faults ?? []);
    const task = taskOf(planned, made);
    material = { task };
    const result = await runTask(stack, task, ending);
    material = { task, result };
    seen.sessionId = result.session_id;
    const completions = await completionsOf(stack, result, ending);
    // An engine is also asked what it can do, which is no session's.
    const entries = stack.sim.ledger.entries().filter((entry) => entry.session_id === result.session_id);
    const facts = factsOf({ result, completions, entries, firedFaults: await firedFaults(stack) });
    material = { task, result, completions, entries };
    const ledger = checkAgainstLedger([result], entries, 'processed');
    const { mismatches } = ledger;
    seen.ledger = ledger;
    seen.facts = facts;
    seen.mismatches = mismatches.length;
    seen.problems.push(
      ...taskProblems(facts, made.expect),
      ...mismatchProblems(mismatches),
      ...accountProblems(facts),
      ...labelProblems(facts),
      ...workProblems(facts),
      ...(made.check?.(facts) ?? []),
    );
  } catch (error) {
    seen.problems.push(
      ending.aborted && !signal.aborted ? `no result within ${CELL_MS / 1000} s` : String(error?.stack ?? error),
    );
    material.entries ??= stack?.sim.ledger.entries();
  }
  try {
    await stack?.close();
  } catch (error) {
    seen.problems.push(`teardown: ${error.message}`);
  }
  const kept =
    seen.problems.length > 0 || keepAlways
      ? await keep(keepDir, planned, { ...material, problems: seen.problems })
      : null;
  return { ...seen, seconds: (performance.now() - started) / 1000, kept };
}

async function firedFaults({ sim }) {
  const { faults } = await (await fetch(`${sim.url}/__sim/faults`)).json();
  return faults.reduce((sum, { fired }) => sum + fired, 0);
}

/** A file name for a cell. */
export function slugOf({ variant, dialect, cell }) {
  return `${variant.label}-${dialect}-${cell}`.replaceAll(/[^A-Za-z0-9._-]+/g, '_');
}

async function keep(keepDir, planned, { task, result, completions, entries, problems }) {
  const dir = join(keepDir, slugOf(planned));
  await mkdir(dir, { recursive: true });
  const write = (name, content) => (content === undefined ? null : writeFile(join(dir, name), content));
  const pretty = (value) => (value === undefined ? undefined : JSON.stringify(value, null, 1));
  const { trajectory, ...summary } = result ?? {};
  await Promise.all([
    write('problems.txt', `${problems.join('\n')}\n`),
    write('task.json', pretty(task)),
    write('session.json', pretty(result === undefined ? undefined : summary)),
    write('trajectory.json', pretty(trajectory)),
    write('stdout.txt', result?.agent?.stdout_tail),
    write('stderr.txt', result?.agent?.stderr_tail),
    write('completions.json', pretty(completions)),
    write('ledger.json', pretty(entries)),
  ]);
  return dir;
}
