import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { allTrainers, runTrainer, withSources } from '../../../verify/trainers/trainers.ts';

const REPORT = {
  trainer: 'example',
  version: '1.0',
  how: 'a validator written from named source',
  rows: 3,
  real_step: false,
  passed: 2,
  failed: 1,
  failures: ['row 2: one trained token is missing'],
};

describe('runTrainer', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'floe-trainers-'));
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  function runProgram(source: string) {
    const program = join(folder, 'example.py');
    writeFileSync(program, source);
    return runTrainer({ name: 'example', program, environment: null }, 'python3', folder, join(folder, 'example.log'));
  }

  it('reads the report in the last line, after other output', async () => {
    const report = await runProgram(`print("loading")\nprint('''${JSON.stringify(REPORT)}''')`);
    expect(report).toEqual({ ...REPORT, largest_difference: null, stand_ins: [] });
  });

  it('passes the folder of the exports to the program', async () => {
    writeFileSync(join(folder, 'floe.jsonl'), JSON.stringify(REPORT));
    const report = await runProgram('import sys\nprint(open(sys.argv[1] + "/floe.jsonl").read())');
    expect(report.failures).toEqual(REPORT.failures);
  });

  it('passes the source of a trainer to the program, which runs in the folder of the exports', async () => {
    const program = join(folder, 'example.py');
    writeFileSync(join(folder, 'report.json'), JSON.stringify({ ...REPORT, failures: ['SOURCE'] }));
    writeFileSync(program, 'import sys\nprint(open("report.json").read().replace("SOURCE", " ".join(sys.argv[1:])))');
    const trainer = { name: 'example', program, environment: null, source: '/sources/example' };
    const { failures } = await runTrainer(trainer, 'python3', folder, join(folder, 'example.log'));
    expect(failures).toEqual([`${folder} --source /sources/example`]);
  });

  it('refuses a program that ends with an error or without a report', async () => {
    const printed = `print('''${JSON.stringify(REPORT)}''')`;
    await expect(runProgram(`${printed}\nraise SystemExit(3)`)).rejects.toThrow('ended with status 3 and a report');
    await expect(runProgram('raise SystemExit("the module example is not installed")')).rejects.toThrow(
      'ended with status 1 and no report: the module example is not installed; see ',
    );
    await expect(runProgram('print("no JSON")')).rejects.toThrow('ended with status 0 and no report');
    const other = JSON.stringify({ ...REPORT, how: 'belief' });
    await expect(runProgram(`print('''${other}''')`)).rejects.toThrow('no report');
  });
});

describe('withSources', () => {
  const trainers = allTrainers();

  it('lets the source of a trainer read the rows, in the environment of sources', () => {
    const found = withSources(trainers, [`rllm=${tmpdir()}`]);
    expect(found.find(({ name }) => name === 'rllm')).toMatchObject({ source: tmpdir(), environment: 'sources' });
    expect(found.filter(({ source }) => source !== undefined)).toHaveLength(1);
    expect(withSources(trainers, [])).toEqual(trainers);
  });

  it('refuses a text that names no trainer and path, a trainer with packages, and a path that is no folder', () => {
    expect(() => withSources(trainers, ['rllm'])).toThrow('--source must be NAME=PATH, and not rllm');
    expect(() => withSources(trainers, [`verl_fsdp=${tmpdir()}`])).toThrow('with a source are nemo_rl, prime_rl, rllm');
    expect(() => withSources(trainers, ['rllm=/does/not/exist'])).toThrow('/does/not/exist is no folder');
  });
});
