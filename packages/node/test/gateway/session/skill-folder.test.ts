import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MIB } from '@floe-rl/core';
import { agentSpecSchema, type Skill } from '@floe-rl/core/schema';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadSkills } from '../../../src/gateway/session/skill-folder.ts';

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'floe-skills-'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const SKILL_TEXT = '---\nname: tables\ndescription: reads tables\n---\nUse a parser.\n';

/** Writes a skill of `bytes` bytes in two files, and loads it as the skills of an agent. */
async function loadSkillOf(bytes: number): Promise<readonly Skill[]> {
  await mkdir(join(root, 'tables'));
  await writeFile(join(root, 'tables', 'SKILL.md'), SKILL_TEXT);
  await writeFile(join(root, 'tables', 'data.txt'), 'x'.repeat(bytes - SKILL_TEXT.length));
  return loadSkills(agentSpecSchema.parse({ harness: 'claude_code', skills_path: root }), [root]);
}

describe('the folder of `agent.skills_path`', () => {
  it('may hold 4 MiB', async () => {
    const [skill] = await loadSkillOf(4 * MIB);
    expect(skill).toMatchObject({ name: 'tables', files: { 'SKILL.md': SKILL_TEXT } });
  });

  it('is refused with an error that names the field and the limit when it holds more', async () => {
    await expect(loadSkillOf(4 * MIB + 1)).rejects.toMatchObject({
      code: 'prepare_failed',
      message: expect.stringMatching(/agent\.skills_path.*4194304 bytes/),
    });
  });
});
