import { execFile } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { installCommand, type RuntimeProblem, SANDBOX_PATH } from '@floe-rl/sandbox';

/** A program of the host that sandboxes run, or the reason why they cannot run it. */
export type ProgramSearch =
  | { readonly path: string; readonly problem: null }
  | { readonly path: null; readonly problem: RuntimeProblem };

/** Bit of a file's mode that lets users other than the owner and its group run the file. */
const OTHERS_EXECUTE = 0o001;

/** Time limit in milliseconds for a program to print its version. */
const VERSION_TIMEOUT_MS = 20_000;

/**
 * Finds a program where sandboxes find it, and runs it once with `--version`. Programs that only root may run are not found, because a gateway
 * that runs as root gives each bubblewrap sandbox another user.
 */
export async function findProgram(name: string, backend: RuntimeBackend): Promise<ProgramSearch> {
  const candidates = SANDBOX_PATH.split(':').map((dir) => join(dir, name));
  const path = candidates.find((candidate) => isExecutable(candidate, backend));
  if (path === undefined) {
    const unusable = candidates.find((candidate) => statSync(candidate, { throwIfNoEntry: false }) !== undefined);
    const problem = unusable === undefined ? `${name} is not installed` : `sandboxes may not run ${unusable}`;
    const remedy = await installCommand(name);
    return failed(problem, unusable === undefined ? remedy : `chmod a+rx ${unusable}, or: ${remedy}`);
  }
  try {
    await promisify(execFile)(path, ['--version'], { timeout: VERSION_TIMEOUT_MS });
    return { path, problem: null };
  } catch (error) {
    const [reason] = (error as Error).message.trim().split('\n').slice(-1);
    return failed(`${path} does not work: ${reason}`, await installCommand(name));
  }
}

/** Whether sandboxes of this backend can run a program: it is installed in a folder of their PATH, with permissions that let them run it. */
export function hasProgram(name: string, backend: RuntimeBackend): boolean {
  return SANDBOX_PATH.split(':').some((dir) => isExecutable(join(dir, name), backend));
}

function failed(problem: string, remedy: string): ProgramSearch {
  return { path: null, problem: { problem, remedy } };
}

function isExecutable(path: string, backend: RuntimeBackend): boolean {
  try {
    accessSync(path, constants.X_OK);
    const isOtherUser = backend === 'bubblewrap' && process.getuid?.() === 0;
    return !isOtherUser || (statSync(path).mode & OTHERS_EXECUTE) !== 0;
  } catch {
    return false;
  }
}
