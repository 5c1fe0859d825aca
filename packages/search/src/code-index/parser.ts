import { Worker } from 'node:worker_threads';
import { type ErrorCode, entryPath, FloeError, onAbort, systemClock } from '@floe-rl/core';
import type { Grammar } from './languages.ts';
import type { ParsedCode } from './parse.ts';

export type ParseRequest = { readonly number: number; readonly text: string; readonly grammar: Grammar };
export type ParseReply =
  | { readonly number: number; readonly parsed: ParsedCode }
  | { readonly number: number; readonly error: { readonly code: ErrorCode; readonly message: string } };

/** Default time limit in milliseconds to parse one file. */
const FILE_LIMIT_MS = 15_000;
/** Memory limit of the thread in MiB. The memory of tree-sitter does not count. */
const MEMORY_MB = 512;

const NOTHING: ParsedCode = { definitions: [], references: [] };

/** Parses files in a thread, one after the other. When parsing a file takes too long or ends the thread, the result is empty. */
export class CodeParser {
  private worker: Worker | null = null;
  private files = 0;
  private readonly limitMs: number;

  constructor(limitMs = FILE_LIMIT_MS) {
    this.limitMs = limitMs;
  }

  /** Rejects with `setup_failed` when the optional packages are missing, or with the reason of `signal`. */
  async parse(text: string, grammar: Grammar, signal: AbortSignal): Promise<ParsedCode> {
    signal.throwIfAborted();
    this.worker ??= new Worker(entryPath(import.meta.url, './worker.js'), {
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: MEMORY_MB },
    });
    const reply = await this.ask(this.worker, { number: ++this.files, text, grammar }, signal);
    if (reply === null) {
      await this.close();
      return NOTHING;
    }
    if ('parsed' in reply) return reply.parsed;
    if (reply.error.code === 'setup_failed') throw new FloeError('setup_failed', reply.error.message);
    return NOTHING;
  }

  async close(): Promise<void> {
    const { worker } = this;
    this.worker = null;
    await worker?.terminate();
  }

  /** Resolves with `null` when the thread ends or does not answer in time. */
  private ask(worker: Worker, request: ParseRequest, signal: AbortSignal): Promise<ParseReply | null> {
    return new Promise((resolve, reject) => {
      const fail = (): void => settle(() => resolve(null));
      const receive = (reply: ParseReply): void => settle(() => resolve(reply));
      const cancel = systemClock.schedule(this.limitMs, fail);
      let release = (): void => {};
      const settle = (act: () => void): void => {
        cancel();
        release();
        worker.off('message', receive).off('error', fail).off('exit', fail);
        act();
      };
      worker.on('message', receive).on('error', fail).on('exit', fail);
      release = onAbort(signal, () => settle(() => reject(signal.reason)));
      worker.postMessage(request);
    });
  }
}
