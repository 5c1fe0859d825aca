import type { Skill } from '@floe-rl/core/schema';
import { parse } from 'yaml';
import { z } from 'zod';
import { defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

/** Maximum number of characters of a description and of a file that the agent sees at once. */
const MAX_DESCRIPTION_CHARS = 1_000;
const MAX_FILE_CHARS = 64 * 1024;

/** The skills of the task: folders of instructions, which the agent reads when it needs them. */
export const skillsToolset = defineToolset({
  name: 'skills',
  description: 'list_skills and read_skill, for the folders in agent.skills; a task with skills has it by itself',
  config: z.strictObject({}),
  scope: 'session',
  async open(_, { skills }) {
    const list = skills.map((skill) => `- ${skill.name}: ${descriptionOf(skill)}`).join('\n');
    const listSkills = defineTool({
      name: 'list_skills',
      description: 'Lists the skills with what each is for.',
      effect: 'none',
      maxChars: MAX_FILE_CHARS,
      parameters: z.object({}),
      run: async () => (list === '' ? 'there are no skills' : list),
    });
    const readSkill = defineTool({
      name: 'read_skill',
      description: 'Reads a file of a skill: SKILL.md unless another one is named.',
      effect: 'none',
      maxChars: MAX_FILE_CHARS,
      parameters: z.object({ skill: z.string(), file: z.string().nullish() }),
      run: async ({ skill, file }) => fileOf(skills, skill, file ?? 'SKILL.md'),
    });
    const instructions = `You have skills. Read the one that fits with read_skill before you begin:\n${list}`;
    return { tools: [listSkills, readSkill], ...(list === '' ? {} : { instructions }) };
  },
});

function fileOf(skills: readonly Skill[], name: string, file: string): string {
  const skill = skills.find((one) => one.name === name);
  if (skill === undefined) {
    const known = skills.map((one) => one.name);
    throw new ToolError('not_found', `there is no skill ${name}; there are: ${known.join(', ') || 'none'}`);
  }
  const content = Object.hasOwn(skill.files, file) ? skill.files[file] : undefined;
  if (content !== undefined) {
    const others = Object.keys(skill.files).filter((path) => path !== file);
    return others.length === 0 || file !== 'SKILL.md' ? content : `${content}\n\n[other files: ${others.join(', ')}]`;
  }
  throw new ToolError('not_found', `${name} has no file ${file}; it has: ${Object.keys(skill.files).join(', ')}`);
}

/** Returns the description in the YAML at the start of SKILL.md, or else its first line of text. */
function descriptionOf({ files }: Skill): string {
  const text = files['SKILL.md'] ?? '';
  const [, head, body = text] = /^---\r?\n([\s\S]*?)\r?\n---\r?\n?([\s\S]*)$/.exec(text) ?? [];
  const description = head === undefined ? null : headerOf(head);
  const firstLine = body.split('\n').find((line) => line.trim() !== '') ?? '';
  return (description ?? firstLine.replace(/^#+\s*/, '')).replace(/\s+/g, ' ').trim().slice(0, MAX_DESCRIPTION_CHARS);
}

function headerOf(yaml: string): string | null {
  try {
    const header: unknown = parse(yaml, { maxAliasCount: 0 });
    const description = typeof header === 'object' && header !== null && 'description' in header && header.description;
    return typeof description === 'string' ? description : null;
  } catch {
    return null;
  }
}
