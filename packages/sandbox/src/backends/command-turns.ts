import { FloeError, linkAbort, raceAbort } from '@floe-rl/core';

/** State that commands of a sandbox use. It is replaced when the sandbox's files are frozen or restored. */
export type CommandState = {
  /** Aborted to end the commands. */
  readonly ended: AbortController;
};

/** Runs either commands of a sandbox or one change of all its files, and never both at the same time. */
export class CommandTurns<State extends CommandState> {
  private current: State;
  private changing: Promise<unknown> = Promise.resolve();
  private users = 0;
  private onIdle: () => void = () => {};

  constructor(first: State) {
    this.current = first;
  }

  /** The state that the next command uses. */
  get state(): State {
    return this.current;
  }

  /** Settles when no change is running. */
  get settled(): Promise<unknown> {
    return this.changing;
  }

  /**
   * Waits for a running change to end. Then calls `work` with the state and with a signal that aborts like `signal`, or when the files are
   * restored. No change begins until `work` has settled.
   */
  async use<T>(signal: AbortSignal, work: (state: State, signal: AbortSignal) => Promise<T>): Promise<T> {
    for (let awaited: unknown = null; awaited !== this.changing; ) {
      awaited = this.changing;
      await raceAbort(this.changing, signal);
    }
    this.users += 1;
    const state = this.current;
    const linked = linkAbort(signal, state.ended.signal);
    try {
      return await work(state, linked.signal);
    } finally {
      linked.release();
      this.users -= 1;
      if (this.users === 0) this.onIdle();
    }
  }

  /**
   * Calls `work`, which returns the next state. Resolves with the previous state. Rejects with `runtime_failed` while commands run, and like
   * `work`.
   */
  whenIdle(work: (from: State) => Promise<State>): Promise<State> {
    return this.change(async (from) => {
      if (this.users > 0) {
        const problem = 'a snapshot cannot be taken while a command runs or tools are open';
        throw new FloeError('runtime_failed', problem, { busy: true });
      }
      return work(from);
    });
  }

  /** Ends all commands with `reason`. Then calls `work`, which returns the next state. Rejects like `work`. */
  async afterEnding(reason: unknown, work: (from: State) => Promise<State>): Promise<void> {
    await this.change(async (from) => {
      from.ended.abort(reason);
      if (this.users > 0) {
        await new Promise<void>((resolve) => {
          this.onIdle = resolve;
        });
      }
      this.current = { ...from, ended: new AbortController() };
      return work(this.current);
    });
  }

  private change(work: (from: State) => Promise<State>): Promise<State> {
    const changed = this.changing.then(async () => {
      const from = this.current;
      this.current = await work(from);
      return from;
    });
    this.changing = changed.catch(() => {});
    return changed;
  }
}

/** Returns the reason for the end of a sandbox's commands and tools when its files are restored. */
export function restoredError(name: string): FloeError {
  const problem = `the files of sandbox ${name} were restored while this was running`;
  return new FloeError('runtime_failed', problem, { restored: true });
}

/** Returns the error of a snapshot that was released before its use. */
export function releasedError({ sandbox }: { readonly sandbox: string }): FloeError {
  return new FloeError('runtime_failed', `the snapshot of sandbox ${sandbox} was released`);
}
