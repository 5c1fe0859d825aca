import type { Skill } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import { never } from '../../../../../sandbox/test/backends/workbench.ts';
import { skillsToolset } from '../../../../src/tools/built-in/skills.ts';
import { openToolset } from '../../../../src/tools/toolset.ts';

const SKILLS: readonly Skill[] = [
  {
    name: 'tables',
    files: {
      'SKILL.md': '---\nname: tables\ndescription: >-\n  Reads tables\n  of all kinds.\n---\nUse csv.',
      'more/csv.md': 'Quote commas.',
    },
  },
  { name: 'plain', files: { 'SKILL.md': '# Plain words\n\nWrite short sentences.' } },
  { name: 'odd', files: { 'SKILL.md': '---\n: [\n---\nOdd.' } },
];

async function open(skills: readonly Skill[]) {
  const context = {
    ...{ box: null, environment: null, seed: 0, metadata: {}, skills, services: {}, mcpServers: [] },
    openTools: () => Promise.reject(new Error('there are no further tools')),
  };
  const { tools, instructions } = await openToolset(skillsToolset, {}, context, never);
  const call = async (name: string, args: object = {}): Promise<unknown> => {
    const tool = tools.find((one) => one.name === name);
    if (tool?.effect !== 'none') throw new Error(`no tool ${name}`);
    return tool.run(args, { services: {}, count: () => {}, measure: () => {} }, never);
  };
  return { instructions, call };
}

describe('skills', () => {
  it('are listed with their descriptions, also before the first call', async () => {
    const { instructions, call } = await open(SKILLS);
    const list = '- tables: Reads tables of all kinds.\n- plain: Plain words\n- odd: Odd.';
    expect(await call('list_skills')).toBe(list);
    expect(instructions).toContain(list);
  });

  it('are read file by file', async () => {
    const { call } = await open(SKILLS);
    expect(await call('read_skill', { skill: 'tables' })).toMatch(/Use csv\.\n\n\[other files: more\/csv\.md\]$/);
    expect(await call('read_skill', { skill: 'tables', file: 'more/csv.md' })).toBe('Quote commas.');
  });

  it.each([
    [{ skill: 'absent' }, /no skill absent; there are: tables, plain, odd/],
    [{ skill: 'plain', file: '../../etc/passwd' }, /plain has no file/],
    [{ skill: 'plain', file: 'toString' }, /plain has no file/],
  ])('are not read for %j', async (args, message) => {
    const { call } = await open(SKILLS);
    await expect(call('read_skill', args)).rejects.toThrow(message);
  });

  it('have no instructions where there are none', async () => {
    const { instructions, call } = await open([]);
    expect(instructions).toBeUndefined();
    expect(await call('list_skills')).toBe('there are no skills');
  });
});
