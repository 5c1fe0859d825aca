import { readdir, readFile, stat } from 'node:fs/promises';
import { join, relative, sep } from 'node:path';
import { FloeError } from '../../core/errors.ts';
import { parseAs } from '../../core/parse.ts';
import { allowedSource } from '../../runtimes/prepare.ts';
import { type AgentSpec, type Skill, skillSchema } from '../../schema/index.ts';

/** Skills are texts that a model reads; a folder with more than this is something else. */
const MAX_SKILL_BYTES = 4 * 1024 * 1024;

/**
 * The agent's skills: its own, and each folder below `agent.skills_path` that has a SKILL.md. Rejects with `source_forbidden` or
 * `prepare_failed` (not there, too large, a name that no skill may have).
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

/** Regular files only: links could lead out of the upload root. */
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
