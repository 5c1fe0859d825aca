import { readdir, readFile, stat } from 'node:fs/promises';
import { join, relative, sep } from 'node:path';
import { FloeError, parseAs } from '@floe-rl/core';
import { type AgentSpec, type Skill, skillSchema } from '@floe-rl/core/schema';
import { allowedSource } from '@floe-rl/sandbox';

/** Maximum total size of the skills of one agent, in bytes. Skills are texts for a model, so a larger folder indicates a wrong path. */
const MAX_SKILL_BYTES = 4 * 1024 * 1024;

/**
 * Returns the agent's skills: those in its spec, and one for each folder in `agent.skills_path` that contains a SKILL.md. Rejects with
 * `source_forbidden` for a path outside the upload roots, which are the host directories that tasks may read. Rejects with `prepare_failed`
 * for a path that does not exist, is no directory or is too large, and with `schema_violation` for a skill with an invalid name or content.
 */
export async function loadSkills(agent: AgentSpec, uploadRoots: readonly string[]): Promise<readonly Skill[]> {
  if (agent.skills_path === undefined) return agent.skills;
  const root = await allowedSource(agent.skills_path, uploadRoots);
  if (!(await stat(root)).isDirectory()) {
    throw new FloeError('prepare_failed', `agent.skills_path: ${agent.skills_path} is not a directory`);
  }
  const skills = [...agent.skills];
  let bytes = 0;
  for (const name of (await readdir(root)).sort()) {
    const files = await textFiles(join(root, name), (size) => {
      bytes += size;
      if (bytes > MAX_SKILL_BYTES) {
        const message = `agent.skills_path: ${agent.skills_path} holds more than ${MAX_SKILL_BYTES} bytes`;
        throw new FloeError('prepare_failed', message);
      }
    });
    if ('SKILL.md' in files) skills.push(parseAs(skillSchema, { name, files }, 'agent.skills_path', name));
  }
  return skills;
}

/**
 * Reads the files in `dir` and its subdirectories, and returns their texts by relative path. Calls `count` with the size of each file.
 * Symbolic links are skipped, because they could point outside the upload root.
 */
async function textFiles(dir: string, count: (bytes: number) => void): Promise<Record<string, string>> {
  const files: Record<string, string> = {};
  if (!(await stat(dir)).isDirectory()) return files;
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    count((await stat(path)).size);
    files[relative(dir, path).split(sep).join('/')] = await readFile(path, 'utf8');
  }
  return files;
}
