import type { TransferListItem } from 'node:worker_threads';
import { onAbort } from '../abort.ts';
import { FloeError } from '../errors.ts';
import { LightAbort } from '../light-abort.ts';
import { isRecord } from '../record.ts';
import { type ErrorCodec, floeErrors } from './error-codec.ts';
import { PendingRequests, type RequestDeadline } from './pending-requests.ts';
import type { Port } from './ports.ts';

/**
 * The operations that one side of a channel offers to the other. The signal aborts when the caller no longer waits. It is a {@link LightAbort},
 * so link it before it goes to functions that are not floe's.
 */
export type Operations = Readonly<Record<string, (argument: never, signal: AbortSignal) => unknown>>;

/** The result of an operation whose buffers move to the caller instead of being copied, where the port can do that. */
export class Moved<Value> {
  readonly value: Value;
  readonly transfer: readonly TransferListItem[];

  constructor(value: Value, transfer: readonly TransferListItem[]) {
    this.value = value;
    this.transfer = transfer;
  }
}

/** Moves bytes to the caller. Bytes that share their memory with others, as small Buffers do, are copied. */
export function movedBytes(bytes: Uint8Array): Moved<Uint8Array> {
  const { buffer } = bytes;
  const isMovable = buffer instanceof ArrayBuffer && bytes.byteLength === buffer.byteLength;
  return new Moved(bytes, isMovable ? [buffer] : []);
}

type Unmoved<Value> = Value extends Moved<infer Inner> ? Inner : Value;
export type ArgumentOf<Operation extends Operations[string]> = Parameters<Operation>[0];
export type ResultOf<Operation extends Operations[string]> = Unmoved<Awaited<ReturnType<Operation>>>;

/** Messages of a channel. `cancel` has an encoded error, the abort reason of the operation's signal. */
type Message =
  | { readonly type: 'call'; readonly id: number; readonly name: string; readonly argument: unknown }
  | { readonly type: 'notice'; readonly name: string; readonly argument: unknown }
  | { readonly type: 'cancel'; readonly id: number; readonly reason: unknown }
  | { readonly type: 'result'; readonly id: number; readonly value: unknown }
  | { readonly type: 'error'; readonly id: number; readonly error: unknown };

export type CallOptions = {
  /** When it aborts, the signal of the operation aborts, and the call rejects with its reason. */
  readonly signal?: AbortSignal | undefined;
  /** With `true`, a call that was cancelled settles as its operation then does, so that the peer has stopped what it did. */
  readonly awaitsPeer?: boolean;
  readonly deadline?: RequestDeadline;
  /** Buffers of the argument that move to the peer instead of being copied. */
  readonly transfer?: readonly TransferListItem[];
};

export type ChannelOptions = {
  /** What the peer may call. Default: nothing. */
  readonly operations?: Operations;
  /** How errors are sent. Both sides must use the same. */
  readonly errors?: ErrorCodec;
  /** Returns the abort reason of an operation that the peer has cancelled for `reason`. Default: `reason`. */
  readonly cancelError?: (reason: Error) => Error;
};

const nothing = (): void => {};

/**
 * Lets two processes or threads of floe call operations of each other. Messages that are not of its format and replies to unknown ids are
 * dropped, because the peer may run the code of others. The owner calls {@link close} when the peer has ended.
 */
export class Channel<Theirs extends Operations> {
  private readonly port: Port;
  private readonly operations: Operations;
  private readonly errors: ErrorCodec;
  private readonly cancelError: (reason: Error) => Error;
  private readonly calls = new PendingRequests<unknown>();
  /** The calls of the peer that run here. */
  private readonly running = new Map<number, LightAbort>();
  private end: Error | null = null;

  constructor(port: Port, { operations = {}, errors = floeErrors, cancelError = (reason) => reason }: ChannelOptions) {
    this.port = port;
    this.operations = operations;
    this.errors = errors;
    this.cancelError = cancelError;
    port.listen((message) => this.receive(message));
  }

  /**
   * Calls an operation of the peer. Rejects with its error, with the reason of the signal, with the error of the deadline, or with the error
   * of {@link close}.
   */
  async call<Name extends keyof Theirs & string>(
    name: Name,
    argument: ArgumentOf<Theirs[Name]>,
    { signal, awaitsPeer = false, deadline, transfer = [] }: CallOptions = {},
  ): Promise<ResultOf<Theirs[Name]>> {
    signal?.throwIfAborted();
    const ending = awaitsPeer ? undefined : signal;
    const limits =
      ending === undefined && deadline === undefined
        ? undefined
        : { signal: ending, deadline, onGivenUp: (late: number, error: unknown) => this.cancel(late, error) };
    const { id, reply } = this.calls.add(undefined, limits);
    if (this.end === null) {
      try {
        this.send({ type: 'call', id, name, argument }, transfer);
      } catch (error) {
        this.calls.reject(id, error);
      }
    }
    if (!awaitsPeer || signal === undefined) return (await reply) as ResultOf<Theirs[Name]>;
    const release = onAbort(signal, () => this.cancel(id, signal.reason));
    try {
      return (await reply) as ResultOf<Theirs[Name]>;
    } finally {
      release();
    }
  }

  /** Calls an operation of the peer whose outcome nothing waits for. `onSent` is called when the operating system has the message. */
  notify<Name extends keyof Theirs & string>(
    name: Name,
    argument: ArgumentOf<Theirs[Name]>,
    onSent: () => void = nothing,
  ): void {
    if (this.end === null) this.send({ type: 'notice', name, argument }, [], onSent);
  }

  /** Rejects all calls, running and later ones, with `error`, and aborts the operations that run for the peer. */
  close(error: Error): void {
    if (this.end !== null) return;
    this.end = error;
    this.calls.end(() => error);
    for (const signal of this.running.values()) signal.abort(error);
  }

  private cancel(id: number, reason: unknown): void {
    if (this.end === null) this.send({ type: 'cancel', id, reason: this.errors.encode(reason) });
  }

  private receive(message: unknown): void {
    if (this.end !== null || !isRecord(message)) return;
    const { type, id } = message;
    if (type === 'notice') {
      void this.run(message.name, message.argument, new LightAbort()).catch(nothing);
      return;
    }
    if (typeof id !== 'number') return;
    switch (type) {
      case 'call':
        if (!this.running.has(id)) void this.perform(id, message.name, message.argument);
        break;
      case 'cancel':
        this.running.get(id)?.abort(this.cancelError(this.errors.decode(message.reason)));
        break;
      case 'result':
        this.calls.resolve(id, message.value);
        break;
      case 'error':
        this.calls.reject(id, this.errors.decode(message.error));
    }
  }

  private async perform(id: number, name: unknown, argument: unknown): Promise<void> {
    const signal = new LightAbort();
    this.running.set(id, signal);
    try {
      const result = await this.run(name, argument, signal);
      const [value, transfer] = result instanceof Moved ? [result.value, result.transfer] : [result, []];
      this.send({ type: 'result', id, value }, transfer);
    } catch (thrown) {
      this.send({ type: 'error', id, error: this.errors.encode(thrown) });
    } finally {
      this.running.delete(id);
    }
  }

  private async run(name: unknown, argument: unknown, signal: AbortSignal): Promise<unknown> {
    const operation = typeof name === 'string' && Object.hasOwn(this.operations, name) ? this.operations[name] : null;
    if (operation == null) throw new FloeError('unsupported', `this process has no operation ${String(name)}`);
    return operation(argument as never, signal);
  }

  private send(message: Message, transfer: readonly TransferListItem[] = [], onSent: () => void = nothing): void {
    this.port.send(message, transfer, onSent);
  }
}
