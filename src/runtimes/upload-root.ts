import { realpath } from 'node:fs/promises';
import { sep } from 'node:path';
import { FloeError } from '../core/errors.ts';

/**
 * A host path that a task names, with every link followed. Rejects with `source_forbidden` when that is not below an upload
 * root, and with `prepare_failed` when it would be but does not exist.
 */
export async function allowedSource(source: string, uploadRoots: readonly string[]): Promise<string> {
  const roots = await Promise.all(uploadRoots.map((root) => realpath(root).catch(() => null)));
  const real = await realpath(source).catch(() => null);
  const allowed = roots.some(
    (root) => root !== null && real !== null && (real === root || real.startsWith(below(root))),
  );
  if (real !== null && allowed) return real;
  // Whether a path outside exists is nobody's business.
  const inside = uploadRoots.some((root) => source.startsWith(below(root)));
  if (real === null && inside) throw new FloeError('prepare_failed', `there is no ${source} on this node`);
  throw new FloeError('source_forbidden', `${source} is not below an upload root of this node`, { source });
}

function below(root: string): string {
  return root.endsWith(sep) ? root : root + sep;
}
