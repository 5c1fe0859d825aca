/** The user and group id under which every sandboxed process runs as seen from inside, whatever it is on the host. */
export const SANDBOX_UID = 1000;

/** A file to write inside a sandbox. */
export type SandboxFile = {
  /** Path inside the sandbox. */
  readonly path: string;
  readonly content: Buffer | string;
  /** Permission bits; default 0644. */
  readonly mode?: number | undefined;
};
