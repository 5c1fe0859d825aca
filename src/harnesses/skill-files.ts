import type { SandboxFile } from '../core/sandbox.ts';
import type { Skill } from '../schema/index.ts';

/** Skill folders below a directory, as every harness with skills expects them: `<dir>/<name>/SKILL.md` and what belongs to it. */
export function skillFiles(dir: string, skills: readonly Skill[]): SandboxFile[] {
  return skills.flatMap(({ name, files }) =>
    Object.entries(files).map(([path, content]) => ({ path: `${dir}/${name}/${path}`, content })),
  );
}
