import { FloeError } from '@floe-rl/core';
import type { HelperReply, HelperRequest, SpawnedProcess, SpawnRequest, SpawnResult } from './spawner.ts';

type Pending = {
  readonly started: (pid: number) => void;
  readonly failed: (error: FloeError) => void;
  readonly line: (line: string | null) => void;
  readonly output: () => void;
  readonly done: (result: SpawnResult) => void;
};

/** The gateway's side of child processes that another process starts: a spawn helper, or the box server of a sandbox. */
export class RemoteChildren {
  private readonly send: (message: HelperRequest) => void;
  private readonly pending = new Map<number, Pending>();
  private nextId = 1;

  /** `send` sends a message to the other process; it ignores messages that cannot be sent. */
  constructor(send: (message: HelperRequest) => void) {
    this.send = send;
  }

  /** Number of child processes that have not ended. */
  get count(): number {
    return this.pending.size;
  }

  /** Starts a process. Rejects with `runtime_failed` when the program cannot be started. */
  spawn(request: SpawnRequest): Promise<SpawnedProcess> {
    const id = this.nextId++;
    return new Promise((resolve, reject) => {
      let settle: {
        line: (line: string | null) => void;
        done: (result: SpawnResult) => void;
        lost: (e: Error) => void;
      };
      const firstLine = new Promise<string | null>((line) => {
        const done = new Promise<SpawnResult>((result, lost) => {
          settle = { line, done: result, lost };
        });
        done.catch(() => {});
        this.pending.set(id, {
          started: (pid) => resolve({ pid, done, firstLine, kill: () => this.send({ type: 'kill', id }) }),
          failed: (error) => {
            reject(error);
            settle.lost(error);
            settle.line(null);
          },
          line: (text) => settle.line(text),
          output: () => request.onOutput?.(),
          done: (value) => {
            settle.line(null);
            settle.done(value);
          },
        });
      });
      const { onOutput, ...plain } = request;
      const reportsOutput = onOutput !== undefined;
      this.send({ type: 'spawn', id, request: { ...plain, stdin: stdinBytes(request.stdin), reportsOutput } });
    });
  }

  /** Processes a message of the other process about one of the children. Returns false when there is no such child, or it has ended. */
  receive(message: Exclude<HelperReply, { type: 'ready' }>): boolean {
    const waiter = this.pending.get(message.id);
    if (waiter === undefined) return false;
    switch (message.type) {
      case 'started':
        waiter.started(message.pid);
        break;
      case 'output':
        waiter.output();
        break;
      case 'line':
        waiter.line(message.line);
        break;
      case 'failed':
        this.pending.delete(message.id);
        waiter.failed(new FloeError('runtime_failed', message.message));
        break;
      case 'done': {
        this.pending.delete(message.id);
        const { stdout, stderr } = message.result;
        waiter.done({ ...message.result, stdout: asBuffer(stdout), stderr: asBuffer(stderr) });
      }
    }
    return true;
  }

  /** Rejects every child process that has not ended, because the other process has died. */
  failAll(error: FloeError): void {
    for (const waiter of this.pending.values()) waiter.failed(error);
    this.pending.clear();
  }
}

function stdinBytes(stdin: SpawnRequest['stdin']): Buffer | 'hold' | undefined {
  if (stdin === undefined || stdin === 'hold') return stdin;
  return typeof stdin === 'string' ? Buffer.from(stdin) : stdin;
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
