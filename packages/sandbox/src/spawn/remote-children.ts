import { FloeError, PendingRequests } from '@floe-rl/core';
import type { HelperReply, HelperRequest, SpawnedProcess, SpawnRequest, SpawnResult } from './spawner.ts';

/** What is done for messages about a child process that has not ended. */
type Listeners = {
  readonly started: (pid: number) => void;
  readonly line: (line: string | null) => void;
  readonly output: () => void;
};

/** The gateway's side of child processes that another process starts: a spawn helper, or the box server of a sandbox. */
export class RemoteChildren {
  private readonly send: (message: HelperRequest) => void;
  private readonly running = new PendingRequests<SpawnResult, Listeners>();

  /** `send` sends a message to the other process; it ignores messages that cannot be sent. */
  constructor(send: (message: HelperRequest) => void) {
    this.send = send;
  }

  /** Number of child processes that have not ended. */
  get count(): number {
    return this.running.size;
  }

  /** Starts a process. Rejects with `runtime_failed` when the program cannot be started. */
  spawn(request: SpawnRequest): Promise<SpawnedProcess> {
    return new Promise((resolve, reject) => {
      let line = (_: string | null): void => {};
      const firstLine = new Promise<string | null>((settle) => {
        line = settle;
      });
      const { id, reply: done } = this.running.add({
        started: (pid) => resolve({ pid, done, firstLine, kill: () => this.send({ type: 'kill', id }) }),
        line,
        output: () => request.onOutput?.(),
      });
      done.catch((error: unknown) => {
        reject(error);
        line(null);
      });
      const { onOutput, ...plain } = request;
      const reportsOutput = onOutput !== undefined;
      this.send({ type: 'spawn', id, request: { ...plain, stdin: stdinBytes(request.stdin), reportsOutput } });
    });
  }

  /** Processes a message of the other process about one of the children. Returns false when there is no such child, or it has ended. */
  receive(message: Exclude<HelperReply, { type: 'ready' }>): boolean {
    const { id } = message;
    const listeners = this.running.find(id);
    if (listeners === undefined) return false;
    switch (message.type) {
      case 'started':
        listeners.started(message.pid);
        break;
      case 'output':
        listeners.output();
        break;
      case 'line':
        listeners.line(message.line);
        break;
      case 'failed':
        this.running.reject(id, new FloeError('runtime_failed', message.message));
        break;
      case 'done': {
        const { stdout, stderr } = message.result;
        listeners.line(null);
        this.running.resolve(id, { ...message.result, stdout: asBuffer(stdout), stderr: asBuffer(stderr) });
      }
    }
    return true;
  }

  /** Rejects every child process that has not ended, because the other process has died. */
  failAll(error: FloeError): void {
    this.running.end(() => error);
  }
}

function stdinBytes(stdin: SpawnRequest['stdin']): Buffer | 'hold' | undefined {
  if (stdin === undefined || stdin === 'hold') return stdin;
  return typeof stdin === 'string' ? Buffer.from(stdin) : stdin;
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
