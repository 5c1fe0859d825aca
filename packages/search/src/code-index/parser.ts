import { asFloeError, entryPath, FloeError, systemClock, Thread } from '@floe-rl/core';
import type { Grammar } from './languages.ts';
import type { ParsedCode } from './parse.ts';
import type { ParseOperations } from './worker.ts';

/** Default time limit in milliseconds to parse one file. */
const FILE_LIMIT_MS = 15_000;
/** Memory limit of the thread in MiB. The memory of tree-sitter does not count. */
const MEMORY_MB = 512;

/** Code of the error of a file that takes too long or ends the thread. */
const NO_ANSWER = 'deadline_exceeded';
const NOTHING: ParsedCode = { definitions: [], references: [] };

/** Parses files in a thread, one after the other. When parsing a file takes too long or ends the thread, the result is empty. */
export class CodeParser {
  private thread: Thread<ParseOperations> | null = null;
  private readonly limitMs: number;

  constructor(limitMs = FILE_LIMIT_MS) {
    this.limitMs = limitMs;
  }

  /** Rejects with `setup_failed` when the optional packages are missing, or with the reason of `signal`. */
  async parse(text: string, grammar: Grammar, signal: AbortSignal): Promise<ParsedCode> {
    this.thread ??= new Thread(entryPath(import.meta.url, './worker.js'), noAnswer, {
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
    });
    const deadline = { clock: systemClock, limitMs: this.limitMs, error: noAnswer };
    try {
      return await this.thread.call('parse', { text, grammar }, { signal, deadline });
    } catch (thrown) {
      signal.throwIfAborted();
      const { code } = asFloeError(thrown);
      if (code === 'setup_failed') throw thrown;
      if (code === NO_ANSWER) await this.close();
      return NOTHING;
    }
  }

  async close(): Promise<void> {
    const { thread } = this;
    this.thread = null;
    await thread?.close();
  }
}

function noAnswer(): FloeError {
  return new FloeError(NO_ANSWER, 'the thread that parses code gave no answer for a file');
}
