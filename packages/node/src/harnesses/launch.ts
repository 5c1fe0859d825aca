/** This file contains code that several adapters use to launch their harness. */

import type { Skill } from '@floe-rl/core/schema';
import type { SandboxFile } from '@floe-rl/sandbox';

/** Context window in tokens that is assumed when the engine does not report one. */
const DEFAULT_CONTEXT_TOKENS = 131_072;
/** Fraction of the context window that one reply may use by default, when the task sets no limit. */
const REPLY_SHARE = 1 / 4;
/** Minimum of the default token limit of a reply. Engines refuse a limit below one token, and a tool call needs some tokens. */
const MIN_REPLY_TOKENS = 256;

type TokenLimits = {
  /** Maximum number of tokens of prompt and reply together. Harnesses compact their history to stay below this limit. */
  readonly contextTokens: number;
  /** Maximum number of tokens of one reply. */
  readonly replyTokens: number;
};

/**
 * Returns the token limits for the configuration of a harness. `contextWindow` is the engine's context window in tokens, or `null` when it is
 * unknown. `maxReplyTokens` is the task's limit of a reply; its default is a quarter of the context window.
 */
export function tokenLimits(contextWindow: number | null, maxReplyTokens?: number): TokenLimits {
  const contextTokens = contextWindow ?? DEFAULT_CONTEXT_TOKENS;
  const replyTokens = maxReplyTokens ?? Math.max(MIN_REPLY_TOKENS, Math.floor(contextTokens * REPLY_SHARE));
  return { contextTokens, replyTokens };
}

/**
 * Timeout in milliseconds of a harness's requests to the model. It is so long that it never passes: the session's time budget ends a run,
 * and a retry after a timeout would sample another reply.
 */
export const MODEL_TIMEOUT_MS = 24 * 60 * 60 * 1000;

/**
 * Returns the files of the task's skills below the directory `dir`. All harnesses with skills read the layout `<dir>/<name>/SKILL.md`, with
 * other files next to it.
 */
export function skillFiles(dir: string, skills: readonly Skill[]): SandboxFile[] {
  return skills.flatMap(({ name, files }) =>
    Object.entries(files).map(([path, content]) => ({ path: `${dir}/${name}/${path}`, content })),
  );
}

/**
 * Returns a command that first makes `link` a symbolic link to `logDir` and then runs `command`. The link moves a program's logs into
 * `logDir`, which is collected after the run. It is used for programs without an option that sets only the log directory. The parent of
 * `link` must exist. When the link cannot be made, the program still runs and writes its logs at `link`.
 */
export function withLogLink(logDir: string, link: string, command: readonly string[]): readonly string[] {
  const script = 'mkdir -p "$1" && ln -s "$1" "$2"; shift 2; exec "$@"';
  return ['/bin/sh', '-c', script, 'floe-logs', logDir, link, ...command];
}

/**
 * Returns the instruction to pass on stdin to a program that treats a text with a leading slash as one of its own commands. The added
 * newline makes the program send such an instruction to the model.
 */
export function promptOf(instruction: string): string {
  return instruction.startsWith('/') ? `\n${instruction}` : instruction;
}
