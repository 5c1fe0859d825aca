/** Identifies the gateway process that started a sandbox. */
export type Owner = {
  /**
   * Id of the gateway's state directory. With this id, a gateway finds the processes that an earlier gateway of the same directory started,
   * and no others.
   */
  readonly id: string;
  /** Id of the gateway process, which is new at each start. */
  readonly instance: string;
};

/** Name of the environment variable that labels every process that a gateway starts for a sandbox, and the gateway's spawn helper. */
const LABEL = 'FLOE_SANDBOX_LABEL';

/** Name that stands in the spawn helper's label in place of a sandbox's name, because the helper belongs to no sandbox. */
export const HELPER_NAME = '.helper';

/** Returns the label of the sandbox `name`, as environment variables. */
export function labelOf({ id, instance }: Owner, name: string): Readonly<Record<string, string>> {
  return { [LABEL]: `${id}/${instance}/${name}` };
}

export type Label = { readonly instance: string; readonly name: string };

/** Reads the label from a process's environment, in which each entry ends with NUL; `null` when the process has no label of this owner. */
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
