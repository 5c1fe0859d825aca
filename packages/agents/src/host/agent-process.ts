import { type ChildProcess, fork } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  asFloeError,
  Channel,
  type Clock,
  entryPath,
  FloeError,
  type LinkedAbort,
  linkAbort,
  processPort,
} from '@floe-rl/core';
import type { DirectCall } from '@floe-rl/core/protocol';
import type { RuntimeTools } from '@floe-rl/sandbox';
import type { Turn } from '../tools/conversation.ts';
import type { PluginModules } from './catalog.ts';
import { agentErrors } from './error-codec.ts';
import type {
  EpisodeEnd,
  EpisodeOrder,
  HostOperations,
  NodeRequest,
  ProcessSetup,
  WorkerOperations,
} from './protocol.ts';
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
  /** Aborts the requests of the episode when it has ended. */
  readonly ended: LinkedAbort;
};

/** A child process that runs episodes of agents. */
export class AgentProcess {
  /** Resolves when the modules are loaded. Rejects with `setup_failed` when one cannot be loaded. */
  readonly ready: Promise<void>;
  private readonly options: AgentProcessOptions;
  private readonly child: ChildProcess;
  private readonly channel: Channel<WorkerOperations>;
  private readonly culpritFile: number;
  private readonly episodes = new Map<number, RunningEpisode>();
  private readonly exited: Promise<void>;
  private nextEpisode = 1;
  private lastPongMs: number;
  private cancelPing = (): void => {};
  /** Why the process has ended, or is being ended; `null` while it runs. */
  private end: FloeError | null = null;
  /** The episode whose code ended the process; 0 when it is not known. */
  private culprit = 0;

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
    const operations: HostOperations = {
      perform: ({ episode, body }, signal) => this.perform(episode, body, signal),
      crashed: ({ episode, message }) => {
        this.culprit = episode;
        this.kill(new FloeError('runtime_failed', `code in a process for agents failed: ${message}`));
      },
    };
    this.channel = new Channel(processPort(this.child), {
      operations,
      errors: agentErrors,
      cancelError: () => new FloeError('cancelled', 'the agent no longer waits for the result'),
    });
    this.exited = new Promise((resolve) => {
      this.child.once('exit', (code, signal) => {
        this.ended(new FloeError('runtime_failed', `a process for agents ended (${signal ?? code})`));
        resolve();
      });
      this.child.on('error', (cause) => {
        // A process that has started ends with the event `exit`.
        if (this.child.pid !== undefined) return;
        this.ended(new FloeError('runtime_failed', `no process for agents: ${cause.message}`, {}, cause));
        resolve();
      });
    });
    this.lastPongMs = options.clock.monotonicMs();
    this.ready = this.loadModules();
    this.ready.catch(() => {});
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
    const ended = linkAbort();
    this.episodes.set(episode, { backend, box, ended });
    try {
      // A cancelled episode ends at once, whenever the agent notices. It can do nothing outside its process any more.
      return await this.channel.call('run', { episode, order }, { signal });
    } catch (error) {
      const { end } = this;
      throw error === end && end !== null && episode === this.culprit ? this.blaming(end) : error;
    } finally {
      ended.abort(new FloeError('cancelled', 'the episode has ended'));
      this.episodes.delete(episode);
      await box?.close();
    }
  }

  /** Ends the process and its episodes, after it has closed the toolsets that it keeps. May be called twice. */
  async close(): Promise<void> {
    if (this.end === null) this.channel.notify('close', undefined);
    this.end ??= new FloeError('cancelled', 'the node shuts down');
    this.channel.close(this.end);
    const cancel = this.options.clock.schedule(CLOSE_MS, () => this.child.kill('SIGKILL'));
    await this.exited;
    cancel();
  }

  /** Loads the modules in the process. When it rejects, the process has ended. */
  private async loadModules(): Promise<void> {
    const { clock, setup } = this.options;
    const cancel = clock.schedule(START_MS, () => {
      const names = pluginNames(setup.modules).join(', ');
      const message = `a process for agents did not start within ${START_MS / 1000} s; its plug-ins: ${names || 'none'}`;
      this.kill(new FloeError('setup_failed', message));
    });
    try {
      await this.channel.call('setup', setup);
    } catch (error) {
      if (this.end === null) this.kill(asFloeError(error));
      await this.exited;
      throw this.end ?? error;
    } finally {
      cancel();
    }
  }

  private async perform(episode: number, body: NodeRequest, signal: AbortSignal): Promise<unknown> {
    const running = this.episodes.get(episode);
    if (running === undefined) throw new FloeError('cancelled', 'the episode has ended');
    const abort = linkAbort(signal, running.ended.signal);
    running.backend.onActivity();
    try {
      return await performFor(running, body, abort.signal);
    } finally {
      abort.release();
      running.backend.onActivity();
    }
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
      const answered = (): void => {
        this.lastPongMs = clock.monotonicMs();
      };
      this.channel.call('ping', undefined).then(answered, () => {});
      this.ping();
    });
  }

  private kill(reason: FloeError): void {
    this.end ??= reason;
    this.child.kill('SIGKILL');
  }

  private ended(reason: FloeError): void {
    this.end ??= reason;
    this.cancelPing();
    // Only failures of plug-ins have a culprit; a shutdown has none.
    if (this.end.code !== 'runtime_failed') this.culprit = 0;
    else this.culprit ||= readCulprit(this.culpritFile);
    closeSync(this.culpritFile);
    this.channel.close(this.end);
  }

  /** Returns the error of the episode whose code has ended the process. */
  private blaming({ message, details }: FloeError): FloeError {
    const plugins = pluginNames(this.options.setup.modules);
    const whose = plugins.length === 0 ? '' : `, which uses ${plugins.join(', ')}`;
    return new FloeError('plugin_failed', `code of this episode${whose}: ${message}`, { ...details, plugins });
  }
}

/** Returns the names of the operator's plug-ins in a process, as in the configuration. Any of them may have done what has ended it. */
function pluginNames(modules: PluginModules): string[] {
  return Object.entries(modules).flatMap(([kind, paths]) => Object.keys(paths).map((name) => `${kind}.${name}`));
}

function performFor({ backend, box }: RunningEpisode, body: NodeRequest, signal: AbortSignal): Promise<unknown> {
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
