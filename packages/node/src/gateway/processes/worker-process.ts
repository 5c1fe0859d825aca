import { type ChildProcess, fork } from 'node:child_process';
import { Channel, entryPath, FloeError, processPort, systemClock } from '@floe-rl/core';
import type { ParentOperations, WorkerOperations, WorkerSetup } from './protocol.ts';

/** Time in milliseconds after which a process that does not end is killed. It ends at once unless it is suspended or blocked. */
const END_MS = 5_000;

/** A child process that runs a part of a node's sessions. */
export class WorkerProcess {
  /** Calls operations of the process. They reject with `node_died` once it has ended. */
  readonly channel: Channel<WorkerOperations>;
  /** Resolves with how the process ended: its exit code or its signal. */
  readonly ended: Promise<string>;
  private readonly child: ChildProcess;

  /** Starts the process. Its environment variables are the variables of this process and `label`. */
  constructor(operations: ParentOperations, label: Readonly<Record<string, string>>) {
    this.child = fork(entryPath(import.meta.url, './worker.js'), [], {
      serialization: 'advanced',
      // Detached from this process group, so that Ctrl-C in a terminal reaches only the parent, which then shuts down in order.
      detached: true,
      stdio: ['ignore', 2, 2, 'ipc'],
      env: { ...process.env, ...label },
    });
    this.channel = new Channel<WorkerOperations>(processPort(this.child), {
      operations,
      cancelError: () => new FloeError('cancelled', 'the process that called no longer waits'),
    });
    this.ended = new Promise((resolve) => {
      this.child.once('error', (error) => resolve(error.message));
      this.child.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
    });
    void this.ended.then((how) =>
      this.channel.close(new FloeError('node_died', `a process of the node ended (${how})`, { how })),
    );
  }

  /** Id of the process in the operating system; `null` when it could not be started. */
  get pid(): number | null {
    return this.child.pid ?? null;
  }

  /** Starts the node's part in the process. Resolves with the address of its proxy. When this rejects, the process ends. */
  async start(setup: WorkerSetup): Promise<string> {
    try {
      return (await this.channel.call('start', setup)).proxyOrigin;
    } catch (error) {
      this.end();
      throw error;
    }
  }

  /** Lets the process end, with all sandboxes that it has started. */
  end(): void {
    if (!this.child.connected) return;
    this.child.disconnect();
    void this.ended.then(systemClock.schedule(END_MS, () => this.child.kill('SIGKILL')));
  }
}
