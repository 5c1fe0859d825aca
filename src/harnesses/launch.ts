/** This file holds the parts of a launch that several adapters share. */
import type { SandboxFile } from '../core/sandbox.ts';
import type { Skill } from '../schema/index.ts';

/** Context window in tokens that is assumed when the engine does not report one. */
const DEFAULT_CONTEXT_TOKENS = 131_072;
/** Share of the context window that one reply may use unless the task sets a limit. */
const REPLY_SHARE = 1 / 4;
/** Smallest default limit of a reply. Engines refuse a limit below one token, and a tool call needs some tokens. */
const MIN_REPLY_TOKENS = 256;

type TokenLimits = {
  /** Maximum number of tokens of prompt and reply together. Harnesses compact their history so that it stays below this limit. */
  readonly contextTokens: number;
  /** Maximum number of tokens of one reply. */
  readonly replyTokens: number;
};

/**
 * Returns the token limits that a harness is configured with. `contextWindow` is `null` when it is unknown; `maxReplyTokens` is the
 * task's limit, by default a quarter of the window.
 */
export function tokenLimits(contextWindow: number | null, maxReplyTokens?: number): TokenLimits {
  const contextTokens = contextWindow ?? DEFAULT_CONTEXT_TOKENS;
  const replyTokens = maxReplyTokens ?? Math.max(MIN_REPLY_TOKENS, Math.floor(contextTokens * REPLY_SHARE));
  return { contextTokens, replyTokens };
}

/**
 * Timeout of a harness's requests to the model. It is longer than any session, because the session's time budget decides when a run
 * ends, and each retry would be another sample.
 */
export const MODEL_TIMEOUT_MS = 24 * 60 * 60 * 1000;

/**
 * Returns the files of skills below a directory, in the layout that all harnesses with skills read: `<dir>/<name>/SKILL.md` and other
 * files.
 */
export function skillFiles(dir: string, skills: readonly Skill[]): SandboxFile[] {
  return skills.flatMap(({ name, files }) =>
    Object.entries(files).map(([path, content]) => ({ path: `${dir}/${name}/${path}`, content })),
  );
}

/**
 * Returns a command that first makes `link` a symbolic link to `logDir`, which is collected after the run, and then runs `command`. It
 * serves programs whose log directory can be changed only together with their configuration directory. The parent of `link` must exist.
 * When the link cannot be made, the program still runs and creates the directory itself.
 */
export function withLogLink(logDir: string, link: string, command: readonly string[]): readonly string[] {
  const script = 'mkdir -p "$1" && ln -s "$1" "$2"; shift 2; exec "$@"';
  return ['/bin/sh', '-c', script, 'floe-logs', logDir, link, ...command];
}

/**
 * Returns the instruction as stdin for a program that reads a leading slash as one of its own commands and would not send such a text to
 * the model.
 */
export function promptOf(instruction: string): string {
  return instruction.startsWith('/') ? `\n${instruction}` : instruction;
}
