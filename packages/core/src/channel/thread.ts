import { parentPort, Worker, type WorkerOptions } from 'node:worker_threads';
import { FloeError } from '../errors.ts';
import { type ArgumentOf, type CallOptions, Channel, type Operations, type ResultOf } from './channel.ts';
import { threadPort } from './ports.ts';

/** A thread that offers operations, as {@link serveThread} states them. It keeps the process alive only while calls run. */
export class Thread<Theirs extends Operations> {
  /** Whether the thread has ended and takes no further calls. */
  hasEnded = false;
  private readonly worker: Worker;
  private readonly channel: Channel<Theirs>;
  /** Number of calls that run. */
  private calls = 0;

  /**
   * Starts the compiled module `path`. `ended` returns the error of calls once the thread has ended; `cause` is the message of the error that
   * ended it, or `null` when there was none.
   */
  constructor(path: string, ended: (cause: string | null) => FloeError, options: WorkerOptions = {}) {
    this.worker = new Worker(path, options);
    this.channel = new Channel(threadPort(this.worker), {});
    // The listener of the channel has made the thread keep the process alive.
    this.worker.unref();
    let cause: string | null = null;
    this.worker.on('error', ({ message }: Error) => {
      cause = message;
    });
    this.worker.once('exit', () => {
      this.hasEnded = true;
      this.channel.close(ended(cause));
    });
  }

  /** Calls an operation of the thread. Rejects as {@link Channel.call}. */
  async call<Name extends keyof Theirs & string>(
    name: Name,
    argument: ArgumentOf<Theirs[Name]>,
    options?: CallOptions,
  ): Promise<ResultOf<Theirs[Name]>> {
    if (this.calls++ === 0) this.worker.ref();
    try {
      return await this.channel.call(name, argument, options);
    } finally {
      if (--this.calls === 0) this.worker.unref();
    }
  }

  /** Ends the thread. Calls in progress are rejected. May be called twice. */
  async close(): Promise<void> {
    await this.worker.terminate();
  }
}

/** Offers operations to the thread that started this one. */
export function serveThread(operations: Operations): void {
  if (parentPort === null) throw new FloeError('internal', 'this module runs in a thread of floe');
  new Channel(threadPort(parentPort), { operations });
}
