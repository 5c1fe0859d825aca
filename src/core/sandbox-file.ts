/** A file to be written inside a sandbox, by its path there. */
export type SandboxFile = {
  readonly path: string;
  readonly content: Buffer | string;
  /** Permission bits; default 0644. */
  readonly mode?: number | undefined;
};
