import type { Spawner } from '../spawn/spawner.ts';

/** The gateway process that a sandbox belongs to. */
export type Owner = {
  /** Id of the state directory. By it a gateway finds what a dead process of the same directory left, and nothing of another's. */
  readonly id: string;
  /** Id of the process, new with each start. */
  readonly instance: string;
};

/** Environment variable of every process that a gateway starts for a sandbox, and of its spawn helper. */
const LABEL = 'FLOE_SANDBOX_LABEL';

/** Name in the label of the spawn helper, in place of a sandbox's name. */
export const HELPER_NAME = '.helper';

/** The label of one sandbox, as environment variables. */
export function labelOf({ id, instance }: Owner, name: string): Readonly<Record<string, string>> {
  return { [LABEL]: `${id}/${instance}/${name}` };
}

export type Label = { readonly instance: string; readonly name: string };

/** The label in a process's environment (entries that end with NUL); `null` when it has none of this owner id. */
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

/** Wraps a spawner so that its processes have the sandbox's label. */
export function labelled(spawner: Spawner, owner: Owner, name: string): Spawner {
  const label = labelOf(owner, name);
  return {
    spawn: (request) => spawner.spawn({ ...request, env: { ...request.env, ...label } }),
    close: () => spawner.close(),
  };
}
