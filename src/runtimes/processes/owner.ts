import type { Spawner } from '../spawn/spawner.ts';

/** Identifies the gateway process that a sandbox belongs to. */
export type Owner = {
  /** Id of the gateway's state directory. With it, a gateway finds only processes that an earlier gateway of the same directory left. */
  readonly id: string;
  /** Id of the gateway process, which is new at each start. */
  readonly instance: string;
};

/** Name of the environment variable that labels every process that a gateway starts for a sandbox, and the gateway's spawn helper. */
const LABEL = 'FLOE_SANDBOX_LABEL';

/** Name in the label of the spawn helper, which belongs to no sandbox. */
export const HELPER_NAME = '.helper';

/** Returns the label of one sandbox, as environment variables. */
export function labelOf({ id, instance }: Owner, name: string): Readonly<Record<string, string>> {
  return { [LABEL]: `${id}/${instance}/${name}` };
}

export type Label = { readonly instance: string; readonly name: string };

/** Reads the label from a process's environment, whose entries end with NUL; `null` when it has no label of this owner. */
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

/** Wraps a spawner so that the processes that it starts have the sandbox's label. */
export function labelled(spawner: Spawner, owner: Owner, name: string): Spawner {
  const label = labelOf(owner, name);
  return {
    spawn: (request) => spawner.spawn({ ...request, env: { ...request.env, ...label } }),
    close: () => spawner.close(),
  };
}
