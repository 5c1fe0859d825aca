import { type ChildProcess, fork } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { asFloeError, type Clock, entryPath, FloeError, linkAbort, onAbort } from '@floe-rl/core';
import type { DirectCall } from '@floe-rl/core/protocol';
import type { RuntimeTools } from '@floe-rl/sandbox';
import type { Turn } from '../tools/conversation.ts';
import type { PluginModules } from './catalog.ts';
import { errorMessage, errorOf } from './error-message.ts';
import type { EpisodeEnd, EpisodeOrder, HostMessage, ProcessSetup, WorkerMessage } from './protocol.ts';
import { PYTHON_START_MS } from './python/python-process.ts';
import { BoxOperations } from './remote-box.ts';

/** Interval in milliseconds at which a process is asked for a sign of life. */
const PING_MS = 1_000;
/** Maximum time in milliseconds to load the modules. Python plug-ins are loaded last. */
const START_MS = 60_000 + PYTHON_START_MS;
/** Maximum time in milliseconds for which a process may close its toolsets before it is killed. */
const CLOSE_MS = 10_000;
/** Environment variables that the process inherits from the node. */
const ENV_NAMES = ['PATH', 'HOME', 'LANG', 'TMPDIR'];

/** What an episode can do outside its process. */
export type EpisodeBackend = {
  /** Lets the model reply. Rejects with the error of the call or with the reason of `signal`. */
  ask(request: DirectCall, signal: AbortSignal): Promise<Turn>;
  /** Opens the tools of the sandbox; `null` for a session without one. */
  readonly openTools: ((signal: AbortSignal) => Promise<RuntimeTools>) | null;
  /** Called for every sign of progress. Must not throw. */
  readonly onActivity: () => void;
};

export type AgentProcessOptions = {
  readonly setup: ProcessSetup;
  readonly env: Readonly<Record<string, string>>;
  readonly clock: Clock;
  /** Time in milliseconds for which code may block the process, before it is ended. */
  readonly blockedMs: number;
};

type RunningEpisode = {
  readonly backend: EpisodeBackend;
  readonly box: BoxOperations | null;
  /** Requests of the episode to its node that have not ended. */
  readonly requests: Map<number, ReturnType<typeof linkAbort>>;
  resolve(end: EpisodeEnd): void;
  reject(error: Error): void;
};

/** A child process that runs episodes of agents. */
export class AgentProcess {
  /** Resolves when the modules are loaded. Rejects with `setup_failed` when one cannot be loaded. */
  readonly ready: Promise<void>;
  private readonly options: AgentProcessOptions;
  private readonly child: ChildProcess;
  private readonly culpritFile: number;
  private readonly episodes = new Map<number, RunningEpisode>();
  private readonly exited: Promise<void>;
  private nextEpisode = 1;
  private lastPongMs: number;
  private cancelPing = (): void => {};
  /** Why the process has ended, or is being ended; `null` while it runs. */
  private end: FloeError | null = null;
  /** The episode that ended the process, as it named itself; 0 when it named none. */
  private crashedEpisode = 0;

  constructor(options: AgentProcessOptions) {
    this.options = options;
    this.culpritFile = openAnonymousFile();
    this.child = fork(entryPath(import.meta.url, './worker.js'), [], {
      serialization: 'advanced',
      detached: true,
      // What plug-ins print goes to the log of the node.
      stdio: ['ignore', 2, 2, 'ipc', this.culpritFile],
      execArgv: [],
      env: agentEnv(options.env),
    });
    this.lastPongMs = options.clock.monotonicMs();
    this.send({ type: 'setup', setup: options.setup });
    this.ready = this.started();
    this.ready.catch(() => {});
    this.exited = new Promise((resolve) => {
      this.child.once('exit', (code, signal) => {
        this.ended(code, signal);
        resolve();
      });
    });
    this.child.on('message', (message) => this.receive(message as WorkerMessage));
    this.ping();
  }

  /** Number of episodes that run in the process. */
  get load(): number {
    return this.episodes.size;
  }

  get hasEnded(): boolean {
    return this.end !== null;
  }

  /**
   * Runs an episode. Rejects with its error; with `plugin_failed` when its code ended the process or blocked it, and with `runtime_failed` when
   * other code did; or with the reason of `signal`.
   */
  async run(order: EpisodeOrder, backend: EpisodeBackend, signal: AbortSignal): Promise<EpisodeEnd> {
    await this.ready;
    signal.throwIfAborted();
    if (this.end !== null) throw this.end;
    const episode = this.nextEpisode++;
    const box = backend.openTools === null ? null : new BoxOperations(backend.openTools);
    let release = (): void => {};
    try {
      return await new Promise<EpisodeEnd>((resolve, reject) => {
        this.episodes.set(episode, { backend, box, requests: new Map(), resolve, reject });
        release = onAbort(signal, () => this.abort(episode, signal));
        this.send({ type: 'start', episode, order });
      });
    } finally {
      release();
      for (const request of this.episodes.get(episode)?.requests.values() ?? []) {
        request.abort(new FloeError('cancelled', 'the episode has ended'));
      }
      this.episodes.delete(episode);
      await box?.close();
    }
  }

  /** Ends the process and its episodes, after it has closed the toolsets that it keeps. May be called twice. */
  async close(): Promise<void> {
    this.send({ type: 'close' });
    this.end ??= new FloeError('cancelled', 'the node shuts down');
    for (const { reject } of this.episodes.values()) reject(this.end);
    const cancel = this.options.clock.schedule(CLOSE_MS, () => this.child.kill('SIGKILL'));
    await this.exited;
    cancel();
  }

  private async started(): Promise<void> {
    const { clock } = this.options;
    await new Promise<void>((resolve, reject) => {
      const cancel = clock.schedule(START_MS, () => {
        const names = pluginNames(this.options.setup.modules).join(', ');
        const message = `a process for agents did not start within ${START_MS / 1000} s; its plug-ins: ${names || 'none'}`;
        this.kill(new FloeError('setup_failed', message));
      });
      const settle = (act: () => void): void => {
        cancel();
        act();
      };
      this.child.once('error', (cause) =>
        settle(() => reject(new FloeError('runtime_failed', `no process for agents: ${cause.message}`, {}, cause))),
      );
      this.child.once('exit', () =>
        settle(() => reject(this.end ?? new FloeError('runtime_failed', 'it ended early'))),
      );
      this.child.on('message', (message: WorkerMessage) => {
        if (message.type === 'ready') settle(resolve);
        if (message.type === 'broken') settle(() => this.kill(asFloeError(errorOf(message.error))));
      });
    });
  }

  private abort(episode: number, signal: AbortSignal): void {
    this.send({ type: 'abort', episode, error: errorMessage(signal.reason) });
    // The session does not wait until the agent notices that its episode has ended. It can do nothing outside its process any more.
    this.episodes.get(episode)?.reject(signal.reason);
  }

  private receive(message: WorkerMessage): void {
    switch (message.type) {
      case 'request':
        void this.perform(message);
        break;
      case 'cancel':
        for (const { requests } of this.episodes.values()) {
          requests.get(message.request)?.abort(new FloeError('cancelled', 'the agent no longer waits for the result'));
        }
        break;
      case 'ended':
        this.episodes.get(message.episode)?.resolve(message.end);
        break;
      case 'rejected':
        this.episodes.get(message.episode)?.reject(errorOf(message.error));
        break;
      case 'crashed':
        this.crashedEpisode = message.episode;
        this.kill(new FloeError('runtime_failed', `code in a process for agents failed: ${message.message}`));
        break;
      case 'pong':
        this.lastPongMs = this.options.clock.monotonicMs();
        break;
      case 'ready':
      case 'broken':
    }
  }

  private async perform({
    request,
    episode,
    body,
  }: Extract<WorkerMessage, { readonly type: 'request' }>): Promise<void> {
    const running = this.episodes.get(episode);
    if (running === undefined) return;
    const abort = linkAbort();
    running.requests.set(request, abort);
    running.backend.onActivity();
    try {
      const value = await performFor(running, body, abort.signal);
      this.send({ type: 'reply', request, value });
    } catch (error) {
      this.send({ type: 'failed', request, error: errorMessage(error) });
    } finally {
      running.requests.delete(request);
      running.backend.onActivity();
    }
  }

  private send(message: HostMessage): void {
    if (this.end !== null || !this.child.connected) return;
    // A failure to send means that the process has ended, which its exit reports.
    this.child.send(message, () => {});
  }

  private ping(): void {
    const { clock, blockedMs } = this.options;
    this.cancelPing = clock.schedule(PING_MS, () => {
      if (this.end !== null) return;
      const silentMs = clock.monotonicMs() - this.lastPongMs;
      if (silentMs > blockedMs + PING_MS) {
        const message = `code has blocked a process for agents for ${Math.round(silentMs / 1000)} s`;
        this.kill(new FloeError('runtime_failed', message));
        return;
      }
      this.send({ type: 'ping' });
      this.ping();
    });
  }

  private kill(reason: FloeError): void {
    this.end ??= reason;
    this.child.kill('SIGKILL');
  }

  private ended(code: number | null, signal: NodeJS.Signals | null): void {
    this.end ??= new FloeError('runtime_failed', `a process for agents ended (${signal ?? code})`);
    this.cancelPing();
    const culprit = this.crashedEpisode || readCulprit(this.culpritFile);
    closeSync(this.culpritFile);
    for (const [episode, { reject }] of this.episodes) {
      const { code: errorCode, message, details } = this.end;
      // Only failures of plug-ins have a culprit; a shutdown has none.
      const isCulprit = episode === culprit && errorCode === 'runtime_failed';
      const plugins = pluginNames(this.options.setup.modules);
      const whose = plugins.length === 0 ? '' : `, which uses ${plugins.join(', ')}`;
      const blame = (): FloeError =>
        new FloeError('plugin_failed', `code of this episode${whose}: ${message}`, { ...details, plugins });
      reject(isCulprit ? blame() : this.end);
    }
  }
}

/** Returns the names of the operator's plug-ins in a process, as in the configuration. Any of them may have done what has ended it. */
function pluginNames(modules: PluginModules): string[] {
  return Object.entries(modules).flatMap(([kind, paths]) => Object.keys(paths).map((name) => `${kind}.${name}`));
}

function performFor(
  { backend, box }: RunningEpisode,
  body: Extract<WorkerMessage, { readonly type: 'request' }>['body'],
  signal: AbortSignal,
): Promise<unknown> {
  if (body.kind === 'ask') return backend.ask(body, signal);
  if (box === null) return Promise.reject(new FloeError('unsupported', 'the session has no sandbox'));
  return box.perform(body, signal);
}

/** Returns the environment variables of a process for agents: few of the node's, and the operator's. */
export function agentEnv(own: Readonly<Record<string, string>>): Record<string, string> {
  const inherited = ENV_NAMES.flatMap((name) =>
    process.env[name] === undefined ? [] : [[name, process.env[name]] as const],
  );
  return { ...Object.fromEntries(inherited), ...own };
}

/** Opens a file that has no name, which only this process and its child can read and write. */
function openAnonymousFile(): number {
  const dir = mkdtempSync(join(tmpdir(), 'floe-agents-'));
  const file = openSync(join(dir, 'culprit'), 'w+');
  rmSync(dir, { recursive: true, force: true });
  return file;
}

function readCulprit(file: number): number {
  const bytes = Buffer.alloc(8);
  return readSync(file, bytes, 0, bytes.length, 0) === bytes.length ? bytes.readDoubleLE(0) : 0;
}
