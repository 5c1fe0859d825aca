import { expect, it } from 'vitest';
import { checkData } from '../../../verify/docs/data.ts';
import type { Block } from '../../../verify/pages/blocks.ts';

function check(language: string, text: string): { forms: number; problems: string[] } {
  const block: Block = { page: 'a.md', line: 1, language, text, notRun: null, before: '', quoted: null, file: null };
  const { forms, findings } = checkData([block]);
  return { forms, problems: findings.map(({ problem }) => problem) };
}

it.each([
  ['a part of a task', 'yaml', 'agent: { harness: pi }\nnum_samples: 4\n', 'num_samples: many'],
  ['a config file', 'yaml', 'server: { retain_tasks_hours: 72 }\n', 'server: { retain: 72 }'],
  ['scenarios', 'yaml', 'scenarios: [{ name: a, rules: [{ reply: [{ text: hi }] }] }]\n', 'scenarios: [{ nam: a }]'],
  ['environment groups', 'yaml', 'environments: { A: { type: sokoban } }\n', 'environments: { A: { kind: sokoban } }'],
])('checkData checks %s against its schema', (_, language, valid, invalid) => {
  expect(check(language, valid)).toEqual({ forms: 1, problems: [] });
  expect(check(language, invalid).problems).toHaveLength(1);
});

it('checkData only parses data of other programs and replies of floe', () => {
  expect(check('yaml', 'apiVersion: v1\nkind: Pod\n')).toEqual({ forms: 0, problems: [] });
  expect(check('json', '{"outcome": "completed", "reward": 1}')).toEqual({ forms: 0, problems: [] });
  expect(check('json', '{"outcome": }').problems).toHaveLength(1);
  expect(check('toml', 'a = \n').problems).toHaveLength(1);
});
