import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { tableFromIPC } from 'apache-arrow';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { findTool } from '../../../../../verify/services/tools.ts';
import { encodeArrow } from '../../../src/trainers/arrow.ts';
import { Booleans, Json } from '../../../src/trainers/format.ts';
import { encodeExport, FORMAT_NAMES, type FormatName, trainingGroups } from '../../../src/trainers/index.ts';
import { randomResults } from '../../trainers/random-results.ts';

/** Returns the values of the columns of an Arrow stream, by name. */
function columnsOf(bytes: Buffer): Record<string, unknown[]> {
  const table = tableFromIPC(bytes);
  const names = table.schema.fields.map((field) => field.name);
  return Object.fromEntries(names.map((name) => [name, [...(table.getChild(name) ?? [])].map(plain)]));
}

function plain(value: unknown): unknown {
  return value !== null && typeof value === 'object' && Symbol.iterator in value
    ? [...(value as Iterable<unknown>)]
    : value;
}

describe('the Arrow encoding', () => {
  it('restores flags, whose bits cross the ends of lists, and empty and null lists', () => {
    const lists = fc.array(fc.option(fc.array(fc.constantFrom(0, 1), { maxLength: 20 })), { minLength: 1 });
    fc.assert(
      fc.property(lists, (values) => {
        const records = values.map((flags) => ({
          flags: flags === null ? null : new Booleans(Uint8Array.from(flags)),
          ids: flags === null ? null : Int32Array.from(flags, (flag) => flag - 7),
        }));
        const bytes = encodeArrow(records, new Set());
        expect(columnsOf(bytes)).toEqual({
          flags: values.map((flags) => flags?.map((flag) => flag === 1) ?? null),
          ids: values.map((flags) => flags?.map((flag) => flag - 7) ?? null),
        });
        expect(bytes.length % 8).toBe(0);
      }),
    );
  });

  it('restores numbers, texts, booleans, JSON values and nulls', () => {
    const records = [
      { count: 3, score: 0.1, text: 'é', flag: true, value: new Json({ a: [1] }), none: null, list: ['a', 'b'] },
      { count: null, score: null, text: null, flag: null, value: null, none: null, list: null },
    ];
    expect(columnsOf(encodeArrow(records, new Set(['count'])))).toEqual({
      count: [3, null],
      score: [0.1, null],
      text: ['é', null],
      flag: [true, null],
      value: ['{"a":[1]}', null],
      none: [null, null],
      list: [['a', 'b'], null],
    });
  });

  it('encodes an export without records', () => {
    expect(tableFromIPC(encodeArrow([], new Set())).numRows).toBe(0);
  });
});

const python = findTool('python3');
const hasPyarrow = python !== null && spawnSync(python, ['-c', 'import pyarrow']).status === 0;

/** The formats that can have several traces for a sample. */
const FORMATS = FORMAT_NAMES.filter((name) => name !== 'trl' && name !== 'openrlhf');

describeIf(hasPyarrow ? null : 'pyarrow is not installed: npm run verify -- install', 'pyarrow', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'floe-arrow-'));
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('reads the same values from Arrow as from JSON lines, in every format', () => {
    const groups = fc.sample(randomResults, { numRuns: 3, seed: 3 }).flatMap((results, run) => {
      const renamed = results.map((result) => ({ ...result, session_id: `${run}-${result.session_id}` }));
      return trainingGroups(renamed);
    });
    const rows = groups.flatMap(({ samples }) => samples.flatMap((sample) => sample.rows));
    const prompt = Math.max(...rows.map((row) => row.promptIds.length));
    const response = Math.max(...rows.map((row) => row.responseIds.length));
    const options: Partial<Record<FormatName, Record<string, unknown>>> = {
      verl_batch: { prompt_length: prompt, response_length: response, pad_token_id: 0 },
      skyrl: { step_wise: true },
      roll: { sequence_length: prompt + response, pad_token_id: 0 },
    };
    for (const format of FORMATS) {
      for (const encoding of ['jsonl', 'arrow'] as const) {
        const bytes = encodeExport(groups, { format, advantages: 'grpo', options: options[format] ?? {} }, encoding);
        writeFileSync(join(folder, `${format}.${encoding}`), bytes);
      }
    }
    const program = join(repositoryRoot(), 'verify', 'trainers', 'arrow.py');
    const { stdout, stderr } = spawnSync(python ?? '', [program, folder], { encoding: 'utf8' });
    expect(stderr).toBe('');
    const { records, differences, types } = JSON.parse(stdout);
    expect(differences).toEqual([]);
    expect(records).toBeGreaterThan(FORMATS.length);
    expect(Object.keys(types).sort()).toEqual([...FORMATS].sort());
    expect(types.floe).toMatchObject({
      prompt_ids: 'list<item: int32>',
      loss_mask: 'list<item: uint8>',
      logprobs: 'list<item: float>',
      sample_index: 'int32',
      reward: 'double',
    });
    expect(types.prime_rl).toMatchObject({ mask: 'list<item: bool>' });
  });
});
