import { fieldError } from '@floe-rl/core';
import type { RuntimeBackend, RuntimeReuse } from '@floe-rl/core/schema';
import { SNAPSHOT_FILES } from '../api/runtime.ts';

/**
 * Back ends that can end all processes of a command while another command runs. In other back ends, a process that hides the marks that floe
 * searches for can run until no command runs.
 */
const SEPARATE_COMMANDS: readonly RuntimeBackend[] = ['bubblewrap'];

/** Throws `unsupported` unless a sandbox of a back end can be reset as `reuse` demands; `null` always can. */
export function refuseReuse(backend: RuntimeBackend, reuse: RuntimeReuse | null): void {
  if (reuse === null) return;
  const refuse = (path: string, message: string): never => {
    throw fieldError(path, message, { code: 'unsupported', details: { path, backend } });
  };
  const { restore, services } = reuse;
  const files = SNAPSHOT_FILES[backend];
  if (backend === 'none') refuse('runtime.reuse', 'the back end none has no sandboxes');
  if (restore === 'all' && files !== 'all') {
    const others = files === null ? 'none' : 'workdir or none';
    refuse('runtime.reuse.restore', `is all, and the back end ${backend} cannot restore all files; use ${others}`);
  }
  if (restore === 'workdir' && files === null) {
    refuse('runtime.reuse.restore', `is workdir, and the back end ${backend} restores no files; use none`);
  }
  if (restore === 'none' && services.length > 0 && !SEPARATE_COMMANDS.includes(backend)) {
    const message = `with restore none, the back end ${backend} cannot end all processes of a session while services run`;
    refuse('runtime.reuse.services', message);
  }
}
