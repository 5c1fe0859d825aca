import type { MessagePort, TransferListItem, Worker } from 'node:worker_threads';

/** One end of a connection that carries whole messages. */
export type Port = {
  /**
   * Sends a message, and calls `onSent` when the operating system has it, or when it was dropped because the peer has ended. Throws when the
   * message cannot be cloned. Buffers in `transfer` are moved and not copied, where the connection can do that.
   */
  send(message: unknown, transfer: readonly TransferListItem[], onSent: () => void): void;
  /** Calls `listener` for each message that arrives. It comes from the peer, and may be anything. */
  listen(listener: (message: unknown) => void): void;
};

/** A process with an IPC connection: a `ChildProcess`, or the global `process` of a child. */
export type ConnectedProcess = {
  readonly connected: boolean;
  send?(message: unknown, handle: undefined, options: undefined, callback: () => void): boolean;
  on(event: 'message', listener: (message: unknown) => void): unknown;
};

/** Returns the port to a process, which must use the serialization `advanced`. Transfer lists are ignored, because processes share no memory. */
export function processPort(peer: ConnectedProcess): Port {
  return {
    send: (message, _, onSent) => {
      // Without a callback, a message that cannot be written raises an uncaught error. The peer has then ended, which its owner notices.
      if (peer.connected) peer.send?.(message, undefined, undefined, onSent);
      else onSent();
    },
    listen: (listener) => void peer.on('message', listener),
  };
}

/** Returns the port to a thread, or from a thread to its parent. */
export function threadPort(peer: Worker | MessagePort): Port {
  return {
    send: (message, transfer, onSent) => {
      peer.postMessage(message, transfer);
      onSent();
    },
    listen: (listener) => void peer.on('message', listener),
  };
}
