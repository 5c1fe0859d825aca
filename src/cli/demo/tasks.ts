import { accessSync, constants } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../core/package-root.ts';

export type DemoTask = { readonly name: string; readonly taskFile: string; readonly scenarioFile: string };
export type LeftOut = { readonly name: string; readonly missing: string };

/** The demo's repositories below examples/tasks, and the programs that their tests need. */
const TASKS = [
  { name: 'js-pagination', needs: [] },
  { name: 'py-roman', needs: ['python3'] },
  { name: 'sh-slug', needs: ['sed'] },
  { name: 'c-ring', needs: ['cc'] },
] as const;

/** Sandboxes see the host's /usr, so what is elsewhere does not count. */
const SANDBOX_PATH = ['/usr/local/bin', '/usr/bin', '/bin'];

/** The tasks that this machine can run, and those that it cannot, with the program that is missing. */
export function demoTasks(): { tasks: DemoTask[]; leftOut: LeftOut[] } {
  const tasks: DemoTask[] = [];
  const leftOut: LeftOut[] = [];
  for (const { name, needs } of TASKS) {
    const missing = needs.find((program) => !hasProgram(program));
    if (missing !== undefined) leftOut.push({ name, missing });
    else tasks.push({ name, taskFile: example(name, 'task.yaml'), scenarioFile: example(name, 'scenario.yaml') });
  }
  return { tasks, leftOut };
}

function example(name: string, file: string): string {
  return join(packageRoot(), 'examples', 'tasks', name, file);
}

function hasProgram(name: string): boolean {
  return SANDBOX_PATH.some((dir) => {
    try {
      accessSync(`${dir}/${name}`, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}
