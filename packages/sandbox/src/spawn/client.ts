import { type ChildProcess, fork } from 'node:child_process';
import { FloeError } from '@floe-rl/core';
import { programPath } from '../programs.ts';
import { RemoteChildren } from './remote-children.ts';
import type { HelperReply, HelperRequest, SpawnedProcess, Spawner, SpawnRequest } from './spawner.ts';

/**
 * Starts the spawn helper process. `label` contains environment variables for the helper process itself; the processes that the helper
 * starts have only the variables of their request. Rejects with `runtime_failed` when the helper cannot be started.
 */
export async function createSpawner(label: Readonly<Record<string, string>> = {}): Promise<Spawner> {
  const spawner = new HelperSpawner(label);
  await spawner.start();
  return spawner;
}

/**
 * Names of the environment variables that the spawn helper inherits from the gateway. The processes that the helper starts inherit none.
 */
const HELPER_ENV_NAMES = ['PATH', 'LANG', 'TMPDIR'];

class HelperSpawner implements Spawner {
  private readonly label: Readonly<Record<string, string>>;
  private helper: Helper | null = null;
  private closing: Promise<void> | null = null;

  constructor(label: Readonly<Record<string, string>>) {
    this.label = label;
  }

  get helperPid(): number | null {
    return this.helper?.pid ?? null;
  }

  async start(): Promise<Helper> {
    if (this.closing !== null) throw new FloeError('runtime_failed', 'the spawner is closed');
    if (this.helper === null || this.helper.dead) this.helper = new Helper(this.label);
    await this.helper.ready;
    return this.helper;
  }

  async spawn(request: SpawnRequest): Promise<SpawnedProcess> {
    if (request.argv.length === 0) throw new FloeError('runtime_failed', 'nothing to run: the argument list is empty');
    const helper = await this.start();
    return helper.spawn(request);
  }

  close(): Promise<void> {
    this.closing ??= this.helper?.close() ?? Promise.resolve();
    this.helper = null;
    return this.closing;
  }
}

/** The gateway's connection to one spawn helper process. It is replaced by a new `Helper` after that process has died. */
class Helper {
  readonly ready: Promise<void>;
  readonly exited: Promise<void>;
  dead = false;
  private readonly child: ChildProcess;
  private readonly children = new RemoteChildren((message) => this.send(message));

  constructor(label: Readonly<Record<string, string>>) {
    const env: Record<string, string> = { ...label };
    for (const name of HELPER_ENV_NAMES) {
      const value = process.env[name];
      if (value !== undefined) env[name] = value;
    }
    this.child = fork(programPath('spawn-helper'), [], {
      serialization: 'advanced',
      // Detached from the gateway's process group, so that Ctrl-C in a terminal reaches only the gateway, which then shuts down in order.
      detached: true,
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      execArgv: ['--max-semi-space-size=1'],
      env,
    });
    this.exited = new Promise((resolve) => {
      this.child.once('exit', () => resolve());
      this.child.once('error', () => resolve());
    });
    this.ready = new Promise((resolve, reject) => {
      this.child.once('error', (cause) =>
        reject(new FloeError('runtime_failed', `the spawn helper cannot be started: ${cause.message}`, {}, cause)),
      );
      this.child.once('exit', () => reject(new FloeError('runtime_failed', 'the spawn helper ended while starting')));
      this.child.on('message', (message) => this.receive(message as HelperReply, resolve));
    });
    // Once the helper is ready, it keeps the gateway process alive only while it runs child processes.
    this.ready.then(
      () => {
        this.child.unref();
        this.updateReference();
      },
      () => this.markDead(),
    );
    this.child.once('disconnect', () => this.markDead());
    this.child.once('exit', () => this.markDead());
  }

  get pid(): number | null {
    return this.child.pid ?? null;
  }

  async spawn(request: SpawnRequest): Promise<SpawnedProcess> {
    const started = this.children.spawn(request);
    this.updateReference();
    return started;
  }

  async close(): Promise<void> {
    await this.ready.catch(() => {});
    this.child.ref();
    this.send({ type: 'close' });
    if (this.child.connected) this.child.disconnect();
    await this.exited;
  }

  private send(message: HelperRequest): void {
    // Without a callback, a message that cannot be written would raise an uncaught error in the gateway. The helper has then died, and the
    // event `disconnect` follows.
    if (!this.dead && this.child.connected) this.child.send(message, () => {});
  }

  private receive(message: HelperReply, onReady: () => void): void {
    if (message.type === 'ready') {
      onReady();
      return;
    }
    this.children.receive(message);
    this.updateReference();
  }

  /** Makes the connection to the helper keep the gateway process alive only while the helper runs child processes. */
  private updateReference(): void {
    if (this.children.count > 0) this.child.channel?.ref();
    else this.child.channel?.unref();
  }

  private markDead(): void {
    if (this.dead) return;
    this.dead = true;
    this.children.failAll(
      new FloeError('runtime_failed', 'the spawn helper died, and every process that it ran with it', {
        helper: 'died',
      }),
    );
  }
}
