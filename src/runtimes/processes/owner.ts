import type { Spawner } from '../spawn/spawner.ts';

/** The gateway process that sandboxes belong to. */
export type Owner = {
  /** Of the state directory: what a dead gateway left is found by it, and what is another gateway's is left alone. */
  readonly id: string;
  /** New with each process. */
  readonly instance: string;
};

/** Environment entry of every process that a gateway starts on behalf of a sandbox, and of its spawn helper. */
const LABEL = 'FLOE_SANDBOX_LABEL';

/** Stands where a sandbox's name would, for the spawn helper itself. */
export const HELPER_NAME = '.helper';

/** The label of one sandbox, as environment variables. */
export function labelOf({ id, instance }: Owner, name: string): Readonly<Record<string, string>> {
  return { [LABEL]: `${id}/${instance}/${name}` };
}

export type Label = { readonly instance: string; readonly name: string };

/** The label in a process's environment (entries that end with NUL), when it is one of this owner id; otherwise null. */
export function readLabel(environment: string, ownerId: string): Label | null {
  const start = `${LABEL}=${ownerId}/`;
  for (const entry of environment.split('\0')) {
    if (!entry.startsWith(start)) continue;
    const rest = entry.slice(start.length);
    const at = rest.indexOf('/');
    if (at >= 0) return { instance: rest.slice(0, at), name: rest.slice(at + 1) };
  }
  return null;
}

/** The same spawner, whose processes carry the sandbox's label. */
export function labelled(spawner: Spawner, owner: Owner, name: string): Spawner {
  const label = labelOf(owner, name);
  return {
    spawn: (request) => spawner.spawn({ ...request, env: { ...request.env, ...label } }),
    close: () => spawner.close(),
  };
}
