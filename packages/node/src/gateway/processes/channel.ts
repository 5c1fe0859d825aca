import { type ErrorMessage, errorMessage, errorOf } from '@floe-rl/agents';
import { FloeError, type LinkedAbort, linkAbort, onAbort } from '@floe-rl/core';

/** The operations that one side of a channel offers to the other. */
type Operations = Readonly<Record<string, (argument: never, signal: AbortSignal) => Promise<unknown>>>;

type Message =
  | { readonly type: 'call'; readonly id: number; readonly name: string; readonly argument: unknown }
  | { readonly type: 'abort'; readonly id: number }
  | { readonly type: 'result'; readonly id: number; readonly value: unknown }
  | { readonly type: 'error'; readonly id: number; readonly error: ErrorMessage };

/** One end of the connection between a process and its child. Both the global `process` and a `ChildProcess` are one. */
export type Port = {
  readonly connected: boolean;
  send?(message: unknown, handle: undefined, options: undefined, callback: () => void): boolean;
  on(event: 'message', listener: (message: unknown) => void): unknown;
};

type Call = { resolve(value: unknown): void; reject(error: Error): void };

/** Lets two connected processes call operations of each other. */
export class Channel<Theirs extends Operations> {
  private readonly port: Port;
  private readonly operations: Operations;
  private readonly calls = new Map<number, Call>();
  /** The calls of the other side that run here. */
  private readonly running = new Map<number, LinkedAbort>();
  private nextId = 1;
  private end: FloeError | null = null;

  constructor(port: Port, operations: Operations) {
    this.port = port;
    this.operations = operations;
    port.on('message', (message) => this.receive(message as Message));
  }

  /**
   * Calls an operation of the other side. Rejects with the error of the operation, or with the error that {@link close} was given. When
   * `signal` aborts, the signal of the operation aborts, and the call settles as the operation then does.
   */
  async call<Name extends keyof Theirs & string>(
    name: Name,
    argument: Parameters<Theirs[Name]>[0],
    signal?: AbortSignal,
  ): Promise<Awaited<ReturnType<Theirs[Name]>>> {
    if (this.end !== null) throw this.end;
    const id = this.nextId++;
    const value = new Promise<unknown>((resolve, reject) => void this.calls.set(id, { resolve, reject }));
    let release = (): void => {};
    try {
      this.send({ type: 'call', id, name, argument });
      release = onAbort(signal, () => this.send({ type: 'abort', id }));
      return (await value) as Awaited<ReturnType<Theirs[Name]>>;
    } finally {
      release();
      this.calls.delete(id);
    }
  }

  /** Rejects all calls, running and later ones, with `error`, and aborts the operations that run for the other side. */
  close(error: FloeError): void {
    this.end ??= error;
    for (const { reject } of this.calls.values()) reject(this.end);
    for (const { abort } of this.running.values()) abort(this.end);
  }

  private receive(message: Message): void {
    switch (message.type) {
      case 'call':
        void this.perform(message.id, message.name, message.argument);
        break;
      case 'abort':
        this.running.get(message.id)?.abort(new FloeError('cancelled', 'the process that called no longer waits'));
        break;
      case 'result':
        this.calls.get(message.id)?.resolve(message.value);
        break;
      case 'error':
        this.calls.get(message.id)?.reject(errorOf(message.error));
    }
  }

  private async perform(id: number, name: string, argument: unknown): Promise<void> {
    const abort = linkAbort();
    this.running.set(id, abort);
    try {
      const operation = this.operations[name];
      if (operation === undefined) throw new Error(`this process has no operation ${name}`);
      this.send({ type: 'result', id, value: await operation(argument as never, abort.signal) });
    } catch (thrown) {
      this.send({ type: 'error', id, error: errorMessage(thrown) });
    } finally {
      this.running.delete(id);
    }
  }

  private send(message: Message): void {
    // A failure to send means that the other process has ended, which is noticed by the end of the connection.
    if (this.port.connected) this.port.send?.(message, undefined, undefined, () => {});
  }
}
