import type { Command } from 'commander';
import { beforeAll, describe, expect, it } from 'vitest';
import { floeProgram } from '../../../tools/reference/command-line.ts';
import { repositoryRoot } from '../../../tools/repository.ts';
import { checkNames } from '../../../verify/docs/names.ts';
import { checkPaths } from '../../../verify/docs/paths.ts';

const KINDS = [
  { noun: 'evaluators?', names: ['answer', 'script'] },
  { noun: 'harness(?:es)?', names: ['pi', 'codex'] },
];

let program: Command;
beforeAll(async () => {
  program = await floeProgram();
});

function problemsOf(markdown: string): string[] {
  return checkNames('docs/a.md', markdown, KINDS, program).map(({ problem }) => problem);
}

describe('names in pages', () => {
  it('are reported when the program does not have them', () => {
    expect(problemsOf('# A\n\nThe evaluators `answer`, `exact` and\n`script`, with the harness `pie`.\n')).toEqual([
      'the program has no evaluators exact; there are answer, script',
      'the program has no harnesses pie; there are pi, codex',
    ]);
  });

  it('are those next to the noun', () => {
    expect(problemsOf('# A\n\nThe harness `pi` reads `PATH`, and an evaluator has `config`.\n')).toEqual([]);
  });

  it('are also commands of floe with their options', () => {
    expect(
      problemsOf('# A\n\n`floe up --engine URL`, `floe harness install pi`, `floe fly`, `floe status --fly`.\n'),
    ).toEqual(['floe has no command fly', 'floe status has no option --fly']);
  });
});

it('paths of the repository in pages are reported when they do not exist', () => {
  const markdown =
    '# A\n\n`packages/core/src/clock.ts`, `packages/core/src/clocks.ts` and `src/x.ts` of another project\n';
  expect(checkPaths(repositoryRoot(), 'docs/a.md', markdown)).toEqual([
    { where: 'docs/a.md:3', problem: 'there is no packages/core/src/clocks.ts' },
  ]);
});
