import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { SessionResult } from '@floe-rl/core/schema';
import { type ExportOptions, encodeExport, type FormatName, trainingGroups } from '@floe-rl/data/trainers';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { randomResults } from '../../../../packages/data/test/trainers/random-results.ts';
import { repositoryRoot } from '../../../../tools/repository.ts';
import { findTool } from '../../../../verify/services/tools.ts';
import { describeIf } from '../../../skip.ts';

// biome-ignore lint/suspicious/noExplicitAny: records are changed as a defect in Python code would change them, by the names of their fields
type Fields = any;

type Defect = { readonly title: string; readonly change: (record: Fields) => void };

/** Defects that an export in a format could have. Each is put into one record with trained tokens. */
const DEFECTS: Partial<Record<FormatName, readonly Defect[]>> = {
  slime: [
    { title: 'a mask shifted by one', change: (r) => rotate(r.loss_mask) },
    { title: 'an id replaced', change: (r) => r.tokens.splice(-1, 1, r.tokens.at(-1) + 1) },
    { title: 'a logprob moved', change: (r) => rotate(r.rollout_log_probs) },
    { title: 'another reward', change: (r) => Object.assign(r, { reward: r.reward + 1 }) },
    { title: 'an advantage moved', change: (r) => rotate(r.advantages) },
    { title: 'a version lost', change: (r) => r.weight_versions.pop() },
    { title: 'a missing entry of the mask', change: (r) => r.loss_mask.pop() },
    { title: 'a sample removed from the loss', change: (r) => Object.assign(r, { remove_sample: true }) },
    { title: 'a trace of another rollout', change: (r) => Object.assign(r, { rollout_id: r.rollout_id + 1 }) },
    { title: 'experts of another token', change: (r) => otherExperts(r.rollout_routed_experts) },
  ],
  prime_rl: [
    { title: 'a mask shifted by one', change: (r) => rotate(r.mask) },
    { title: 'an id replaced', change: (r) => r.token_ids.splice(-1, 1, r.token_ids.at(-1) + 1) },
    { title: 'a logprob moved', change: (r) => rotate(r.logprobs) },
    { title: 'an advantage moved', change: (r) => rotate(r.advantages) },
    { title: 'advantages lost', change: (r) => Object.assign(r, { advantages: null }) },
    { title: 'fields in another order', change: (r) => Object.assign(r, { env_name: take(r, 'env_name') }) },
    { title: 'a missing logprob', change: (r) => r.logprobs.pop() },
    { title: 'experts of another token', change: (r) => otherExperts(r.routed_experts) },
  ],
  nemo_rl: [
    { title: 'a mask shifted by one', change: (r) => moveToken(r.message_log) },
    { title: 'an id replaced', change: (r) => r.message_log[1].token_ids.splice(0, 1, 9_999_999) },
    { title: 'a logprob moved', change: (r) => rotate(r.message_log[1].generation_logprobs) },
    { title: 'another advantage', change: (r) => r.message_log[1].advantages.fill(9) },
    { title: 'a reward lost', change: (r) => Object.assign(r.full_result, { reward: null }) },
    { title: 'context without logprobs', change: (r) => take(r.message_log[0], 'generation_logprobs') },
    { title: 'a sample removed from the loss', change: (r) => Object.assign(r, { loss_multiplier: 0 }) },
    { title: 'experts of another token', change: (r) => otherExperts(r.message_log[0].routed_experts) },
    { title: 'a length without the context before the first reply', change: (r) => Object.assign(r, { length: 1 }) },
  ],
  roll: [
    { title: 'a mask shifted by one', change: (r) => rotate(r.response_mask) },
    { title: 'an id replaced', change: (r) => r.input_ids.splice(0, 1, r.input_ids[0] + 1) },
    { title: 'a logprob moved', change: (r) => rotate(r.infer_logprobs) },
    { title: 'an advantage moved', change: (r) => rotate(r.advantages) },
    { title: 'logprobs that are not shifted', change: (r) => r.infer_logprobs.unshift(0) },
    { title: 'a reward on the wrong token', change: (r) => rotate(r.scores) },
    { title: 'a token in the padding', change: (r) => rotate(r.attention_mask) },
    { title: 'a row of another group', change: (r) => Object.assign(r, { traj_group_id: 'other' }) },
  ],
  rllm: [
    { title: 'a mask shifted by one', change: (r) => steps(r).forEach(moveToPrompt) },
    { title: 'an id replaced', change: (r) => steps(r)[0].response_ids.splice(0, 1, 9_999_999) },
    { title: 'a logprob moved', change: (r) => rotate(steps(r)[0].logprobs) },
    { title: 'a reward on the wrong step', change: (r) => Object.assign(steps(r)[0], { reward: 7 }) },
    { title: 'a version lost', change: (r) => Object.assign(steps(r)[0], { weight_version: null }) },
    { title: 'experts of another token', change: (r) => otherMatrices(steps(r).at(-1)) },
    { title: 'a prompt without its first token', change: (r) => steps(r)[0].prompt_ids.shift() },
  ],
};

const FORMATS = Object.keys(DEFECTS) as FormatName[];
const PAD_TOKEN_ID = 0;

function rotate(list: unknown[]): void {
  list.unshift(list.pop());
}

/** Removes a field and returns its value, so that a new assignment puts it at the end of the record. */
function take(record: Fields, name: string): unknown {
  const { [name]: value } = record;
  delete record[name];
  return value;
}

function otherMatrices(step: Fields): void {
  if (step.routing_matrices === null) return;
  const experts = { data: step.routing_matrices[1] };
  otherExperts(experts);
  step.routing_matrices[1] = experts.data;
}

function otherExperts(experts: Fields): void {
  if (experts === null || experts === undefined) return;
  const data = Buffer.from(experts.data, 'base64');
  data.writeUInt8((data.readUInt8(0) + 1) % 128, 0);
  experts.data = data.toString('base64');
}

/** Moves the first trained token to the context before it. */
function moveToken([before, reply]: Fields[]): void {
  before.token_ids.push(reply.token_ids.shift());
  before.generation_logprobs.push(reply.generation_logprobs.shift());
}

function steps(record: Fields): Fields[] {
  return record.trajectories.find((trajectory: Fields) => trajectory.steps.length > 0).steps;
}

function moveToPrompt(step: Fields): void {
  step.prompt_ids.push(step.response_ids.shift());
  step.logprobs.shift();
}

/** Whether the trainer trains a token of the record. */
function isTrained(record: Fields, format: FormatName): boolean {
  switch (format) {
    case 'slime':
      return !record.remove_sample;
    case 'nemo_rl':
      return record.loss_multiplier === 1;
    case 'rllm':
      return record.trajectories.some((trajectory: Fields) => trajectory.steps.length > 0);
    default:
      return true;
  }
}

/** Makes the results of many random sessions, whose ids are unique. */
function sampledResults(): SessionResult[] {
  return fc.sample(randomResults, { numRuns: 40, seed: 20 }).flatMap((results, run) =>
    results.map((result) => {
      const traces = result.trajectory?.traces.map((trace) => ({
        ...trace,
        trace_id: `${run}-${result.session_id}-${trace.trace_id}`,
      }));
      const trajectory = result.trajectory === null ? null : { ...result.trajectory, traces: traces ?? [] };
      const ids = { task_id: `${run}-${result.task_id}`, session_id: `${run}-${result.session_id}` };
      return { ...result, ...ids, trajectory };
    }),
  );
}

const noPython = findTool('python3') === null ? 'python3 is not installed: apt-get install -y python3' : null;

describeIf(noPython, 'the validators of trainers that are not on a package registry', () => {
  let folder: string;
  const results = sampledResults();
  const groups = trainingGroups(results);
  const longest = Math.max(
    ...groups.flatMap(({ samples }) =>
      samples.flatMap(({ rows }) => rows.map((row) => row.promptIds.length + row.responseIds.length)),
    ),
  );
  const options: Partial<Record<FormatName, ExportOptions['options']>> = {
    roll: { sequence_length: longest + 3, pad_token_id: PAD_TOKEN_ID },
  };

  function exported(format: FormatName): Fields[] {
    const bytes = encodeExport(groups, { format, advantages: 'grpo', options: options[format] ?? {} }, 'jsonl');
    return bytes
      .toString()
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line));
  }

  function write(format: FormatName, records: readonly Fields[]): void {
    writeFileSync(join(folder, `${format}.jsonl`), records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  }

  function report(format: FormatName): Fields {
    const program = join(repositoryRoot(), 'verify', 'trainers', 'validators', `${format}.py`);
    const { stdout, stderr } = spawnSync('python3', ['-B', program, folder], { encoding: 'utf8' });
    expect(stderr).toBe('');
    return JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '');
  }

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'floe-validators-'));
    write('floe', exported('floe'));
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('get sessions with several traces, masked samples, several versions in one trace, experts and rewards', () => {
    const samples = groups.flatMap((group) => group.samples);
    const rows = samples.flatMap((sample) => sample.rows);
    expect(samples.some((sample) => sample.rows.length > 2)).toBe(true);
    expect(samples.some((sample) => sample.use === 'mask')).toBe(true);
    expect(rows.some((row) => new Set(row.versionSpans.map(({ version }) => version)).size > 1)).toBe(true);
    expect(rows.some((row) => row.routedExperts !== null)).toBe(true);
    expect(rows.some((row) => row.lossMask.includes(0) && row.lossMask.includes(1))).toBe(true);
    expect(new Set(rows.map((row) => row.reward)).size).toBeGreaterThan(2);
  });

  it.each(FORMATS)('of %s pass each trace of an export', (format) => {
    write(format, exported(format));
    const { passed, failed, rows, real_step: isReal, failures } = report(format);
    expect(failures).toEqual([]);
    expect({ failed, isReal }).toEqual({ failed: 0, isReal: false });
    const traces = groups.flatMap((group) => group.samples.flatMap((sample) => sample.rows));
    const trained = traces.filter((row) => row.lossMask.includes(1));
    expect(rows).toBe(format === 'roll' || format === 'prime_rl' ? trained.length : traces.length);
    expect(passed).toBe(rows);
  });

  const cases = FORMATS.flatMap((format) =>
    (DEFECTS[format] ?? []).map(({ title, change }) => ({ format, title, change })),
  );
  it.each(cases)('of $format report $title', ({ format, change }) => {
    const records = exported(format);
    // The first record that the defect changes.
    const at = records.findIndex((record) => {
      if (!isTrained(record, format)) return false;
      const changed = structuredClone(record);
      change(changed);
      return JSON.stringify(changed) !== JSON.stringify(record);
    });
    expect(at).toBeGreaterThanOrEqual(0);
    change(records[at]);
    write(format, records);
    expect(report(format)).toMatchObject({ failed: expect.not.toSatisfy((failed) => failed === 0) });
  });

  it('name the module that a source imports and that is not installed', () => {
    write('rllm', exported('rllm'));
    const program = join(repositoryRoot(), 'verify', 'trainers', 'validators', 'rllm.py');
    const { status, stderr } = spawnSync('python3', ['-B', program, folder, '--source', folder], { encoding: 'utf8' });
    const problem = `rLLM: the source in ${folder} cannot be imported: the module rllm is not installed`;
    expect([status, stderr.trimEnd()]).toEqual([1, problem]);
  });

  it.each(FORMATS)('of %s report a trace that the export lacks', (format) => {
    write(format, exported(format).slice(0, -1));
    expect(report(format).failures).not.toEqual([]);
  });
});
