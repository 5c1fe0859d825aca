import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { describeIf, toolMissing } from '../../../../../test/skip.ts';
import { findTool } from '../../../../../verify/services/tools.ts';
import type { ClusterConfig } from '../../../src/deployment/cluster-config.ts';
import { argumentSchema, quoteArgument, quoteTemplate } from '../../../src/deployment/shell-arguments.ts';
import { slurmPlan } from '../../../src/deployment/slurm-plan.ts';
import { fullConfig } from '../../deployment/full-config.ts';

/** Generates arguments that a configuration may contain. About half of them consist of characters that shells interpret. */
const argument = fc
  .oneof(fc.string({ minLength: 1, unit: 'grapheme' }), fc.stringMatching(/^[$(){}`'"\\ !#;&|<>*?~x{port}-]{1,20}$/))
  .filter((text) => argumentSchema.safeParse(text).success);

function scriptOf(config: ClusterConfig, name: string): string {
  return slurmPlan(config).find((job) => job.name === name)?.script ?? '';
}

function bash(text: string): { stdout: string; status: number | null } {
  // Without --norc, bash may mistake the test's pipe for a network connection and run the user's ~/.bashrc first.
  return spawnSync('bash', ['--norc', '-c', text], { encoding: 'utf8' });
}

describe('arguments in scripts', () => {
  it('reach the program unchanged, whatever characters they contain', () => {
    fc.assert(
      fc.property(fc.array(argument, { minLength: 1, maxLength: 30 }), (values) => {
        const { stdout } = bash(`port=WRONG; printf '%s\\0' ${values.map(quoteArgument).join(' ')}`);
        expect(stdout.split('\0').slice(0, -1)).toEqual(values);
      }),
      { numRuns: 60 },
    );
  });

  it('are replaced by the named variables only', () => {
    fc.assert(
      fc.property(fc.array(argument, { minLength: 1, maxLength: 30 }), (values) => {
        const script = values.map((each) => quoteTemplate(each, ['port'])).join(' ');
        const { stdout } = bash(`port='8 0'; host=WRONG; printf '%s\\0' ${script}`);
        expect(stdout.split('\0').slice(0, -1)).toEqual(values.map((each) => each.replaceAll('{port}', '8 0')));
      }),
      { numRuns: 60 },
    );
  });

  it('cannot break the syntax of a whole script', () => {
    fc.assert(
      fc.property(argument, argument, argument, (model, option, engineArgument) => {
        const config = fullConfig({
          floe: ['floe', option],
          engines: [],
          nodes: [{ name: 'x', options: [option], engines: [{ command: ['serve', engineArgument], model }] }],
        });
        const plan = slurmPlan(config);
        expect(spawnSync('bash', ['-n'], { input: plan.map(({ script }) => script).join('\n') }).status).toBe(0);
        for (const { script } of plan) {
          // Slurm reads `#SBATCH` options only from the comments before the first command, so no option may follow a command.
          const lines = script.split('\n');
          const first = lines.findIndex((line) => !line.startsWith('#'));
          expect(lines.slice(first).filter((line) => line.startsWith('#SBATCH'))).toEqual([]);
        }
      }),
      { numRuns: 30 },
    );
  });
});

describe('scripts', () => {
  let dir: string;
  beforeEach(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-scripts-'));
  });
  afterEach(() => rm(dir, { recursive: true }));

  const shellcheck = findTool('shellcheck');
  const configs: [string, ClusterConfig][] = [
    ['everything', fullConfig()],
    ['only required settings', fullConfig({ setup: null, tls: null, engines: [], nodes: [{ name: 'cpu' }] })],
    ['an embedded database', fullConfig({ database: { kind: 'sqlite' }, server: { replicas: 1 } })],
    [
      'an external database',
      fullConfig({ database: { kind: 'external', url_file: '/shared/url' }, blobs: 's3://b/x' }),
    ],
  ];
  describeIf(toolMissing('shellcheck'), 'checked by shellcheck', () => {
    it.each(configs)('cause no shellcheck warnings with %s', async (_, config) => {
      for (const { file, script } of slurmPlan(config)) {
        await writeFile(join(dir, file), script);
        const { stdout } = spawnSync(shellcheck ?? '', ['--severity=style', join(dir, file)], { encoding: 'utf8' });
        expect(stdout).toBe('');
      }
    });
  });

  it('request the options of the role, and the shared options where it sets none', () => {
    const lines = (name: string): string[] =>
      scriptOf(fullConfig(), name)
        .split('\n')
        .filter((line) => line.startsWith('#SBATCH'));
    expect(lines('server')).toEqual(
      expect.arrayContaining([
        '#SBATCH --array=1-2',
        '#SBATCH --cpus-per-task=4',
        '#SBATCH --time=1-00:00:00',
        '#SBATCH --partition=main',
        '#SBATCH --licenses=x',
        '#SBATCH --requeue',
      ]),
    );
    expect(lines('gpu')).toEqual(
      expect.arrayContaining(['#SBATCH --time=4:00:00', '#SBATCH --gres=gpu:8', '#SBATCH --exclusive']),
    );
    expect(lines('database')).not.toContainEqual(expect.stringContaining('--array'));
    expect(lines('cpu')).not.toContainEqual(expect.stringContaining('--gres'));
  });

  it('contain the paths of secret files but no secrets', () => {
    for (const { script } of slurmPlan(fullConfig())) {
      expect(script).not.toMatch(/--token[ =]/);
      expect(script).not.toMatch(/--database[= ]'?postgres:/);
    }
    expect(scriptOf(fullConfig(), 'server')).toContain('--token-file "$run/token"');
  });

  it('are submitted so that each depends only on a job that has started', () => {
    expect(slurmPlan(fullConfig()).map(({ name, after }) => [name, after])).toEqual([
      ['database', null],
      ['server', 'database'],
      ['gpu', 'server'],
      ['cpu', 'server'],
    ]);
    const embedded = fullConfig({ database: { kind: 'sqlite' }, server: { replicas: 1 } });
    expect(slurmPlan(embedded)[0]).toMatchObject({ name: 'server', after: null });
  });
});
