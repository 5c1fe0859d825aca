/** User id and group id that every process of a sandbox has inside the sandbox. They may be different ids on the host. */
export const SANDBOX_UID = 1000;

/** A file to write to a sandbox. */
export type SandboxFile = {
  /** Path of the file in the sandbox. */
  readonly path: string;
  readonly content: Buffer | string;
  /** Permission bits of the file; default: 0644. */
  readonly mode?: number | undefined;
};
