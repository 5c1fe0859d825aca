import { type ChildProcess, spawn } from 'node:child_process';
import { statSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import {
  asFloeError,
  assetPath,
  type Clock,
  FloeError,
  LineReader,
  lastOutput,
  linkAbort,
  onAbort,
  PendingRequests,
  parseJson,
  raceAbort,
  Semaphore,
  wellFormedJson,
} from '@floe-rl/core';
import { z } from 'zod';
import type { PythonPlugin } from './python-plugin.ts';

/** Maximum time in milliseconds to start a process and import its plug-in. */
export const PYTHON_START_MS = 120_000;
/** Maximum time in milliseconds that code of an episode which has ended may keep its thread, before no further episodes share its process. */
const LEAVE_MS = 30_000;
/** Maximum time in milliseconds in which a process may end by itself. */
const CLOSE_MS = 3_000;
/** Time in milliseconds to wait for the last output after the end of a process: what it has started may keep its streams open. */
const DRAIN_MS = 1_000;
/** Maximum size in bytes of a message of a process, which the process checks. A longer line breaks the protocol. */
const MAX_MESSAGE_BYTES = 32 * 1024 * 1024;
const MAX_VALUES = 1_000_000;
/** Number of characters of the end of stderr that an error quotes. */
const QUOTED_CHARS = 500;

const messageSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('ready'), about: z.unknown() }),
  z.object({ type: z.literal('broken'), message: z.string() }),
  z.object({ type: z.literal('result'), id: z.int(), value: z.unknown() }),
  z.object({ type: z.literal('error'), id: z.int(), message: z.string(), cause: z.int().nullable() }),
  z.object({ type: z.literal('call'), id: z.int(), episode: z.int(), method: z.string(), params: z.unknown() }),
]);
type PythonMessage = z.infer<typeof messageSchema>;

/** Does what code of an episode asks its node for. Rejects as what was asked for. */
export type ServeRequest = (method: string, params: unknown, signal: AbortSignal) => Promise<unknown>;

export type PythonProcessOptions = {
  readonly name: string;
  readonly plugin: PythonPlugin;
  readonly clock: Clock;
  readonly env: Readonly<Record<string, string | undefined>>;
};

type Call = { readonly episode: number; readonly method: string };

type RunningEpisode = {
  readonly serve: ServeRequest;
  readonly abort: ReturnType<typeof linkAbort>;
  /** Number of requests that its code waits for. */
  waiting: number;
  /** Errors of its requests by their numbers. */
  readonly failures: Map<number, Error>;
};

/** What code of one episode does in a Python process. */
export type PythonEpisode = {
  /**
   * Calls a method of the plug-in. Rejects with an Error for an exception of its code, and with `plugin_failed` when the plug-in ended the
   * process or did not return in time. Rejects with `runtime_failed` when other code did that. Rejects with the error of a request to the node
   * that the plug-in did not handle, or with the reason of the episode's signal.
   */
  call(method: string, params: object, timeoutMs?: number): Promise<unknown>;
  /** Frees what the episode uses. May be called twice. */
  end(): void;
};

/** A Python process that runs the code of one plug-in for many episodes. */
export class PythonProcess {
  /** Facts that the plug-in states about itself. */
  about: unknown = null;
  private readonly options: PythonProcessOptions;
  private readonly label: string;
  private readonly child: ChildProcess;
  /** Resolves when the process has ended. */
  readonly hasExited: Promise<void>;
  /** Lets as many episodes of an environment run as the plug-in has threads; `null` for plug-ins that mostly wait. */
  private readonly permits: Semaphore | null;
  private readonly calls = new PendingRequests<unknown, Call>();
  private readonly episodes = new Map<number, RunningEpisode>();
  private nextEpisode = 1;
  private errorOutput = '';
  private started = { resolve: (): void => {}, reject: (_: Error): void => {} };
  /** Why the process has ended, or is being ended; `null` while it runs. */
  private failure: FloeError | null = null;
  /** Number of the call that ended the process; `null` when it is not known. */
  private culprit: number | null = null;
  /** Whether code of an episode that has ended keeps its thread. */
  private isLeft = false;
  /** Whether the calls of the process have been settled after its end. */
  private hasSettled = false;

  private constructor(options: PythonProcessOptions) {
    const { name, plugin, env } = options;
    this.options = options;
    this.label = `plugins.python.${name}`;
    this.permits = plugin.kind === 'environment' ? new Semaphore(plugin.threads) : null;
    const folder = plugin.path ?? process.cwd();
    const modules = [folder, assetPath(import.meta.url, 'python/src'), env.PYTHONPATH ?? ''];
    const args = ['-X', 'faulthandler', '-m', 'floe.serve_plugin', plugin.kind, plugin.target];
    this.child = spawn(programOf(plugin.python), args, {
      cwd: folder,
      env: { ...env, PYTHONPATH: modules.filter((path) => path !== '').join(delimiter) },
      stdio: 'pipe',
      // Everything that its code starts is in its process group, which is ended with it.
      detached: true,
    });
    this.hasExited = this.follow();
    const threads = plugin.kind === 'environment' ? plugin.threads : null;
    this.send({ type: 'setup', options: plugin.options, threads, max_message: MAX_MESSAGE_BYTES });
  }

  /** Starts a process and imports the plug-in. Rejects with `setup_failed`, which names the plug-in and its target. */
  static async start(options: PythonProcessOptions): Promise<PythonProcess> {
    const created = new PythonProcess(options);
    await new Promise<void>((resolve, reject) => {
      const cancel = options.clock.schedule(PYTHON_START_MS, () => {
        created.refuse(`${options.plugin.target} was not imported within ${PYTHON_START_MS / 1000} s`);
      });
      void created.hasExited.then(cancel);
      created.started = {
        resolve: () => {
          cancel();
          resolve();
        },
        reject,
      };
    });
    return created;
  }

  /** Id of the process; -1 when it could not be started. */
  get pid(): number {
    return this.child.pid ?? -1;
  }

  /** Whether the process takes no further episodes. */
  get hasEnded(): boolean {
    return this.failure !== null || this.isLeft || this.child.exitCode !== null || this.child.signalCode !== null;
  }

  /** Begins an episode, whose code may ask for what `serve` does. When `signal` aborts, its calls and its requests fail. */
  begin(serve: ServeRequest, signal: AbortSignal): PythonEpisode {
    const episode = this.nextEpisode++;
    const abort = linkAbort(signal);
    this.episodes.set(episode, { serve, abort, waiting: 0, failures: new Map() });
    const release = onAbort(signal, () => {
      const { code, message } = asFloeError(signal.reason);
      this.send({ type: 'abort', episode, code, message });
    });
    let hasEnded = false;
    return {
      call: (method, params, timeoutMs) => raceAbort(this.call(episode, method, params, timeoutMs ?? null), signal),
      end: () => {
        if (hasEnded) return;
        hasEnded = true;
        release();
        abort.abort(hasEndedError());
        abort.release();
        this.leave(episode);
      },
    };
  }

  /** Ends the process, after environments that have ended are closed. May be called twice. */
  async close(): Promise<void> {
    const reason = new FloeError('cancelled', `${this.label}: its process is being ended`);
    this.failure ??= reason;
    this.child.stdin?.end();
    const cancel = this.options.clock.schedule(CLOSE_MS, () => this.kill(reason, null));
    await this.hasExited;
    cancel();
  }

  /** Lets the plug-in free what an episode uses. The process takes no further episodes when code of this one does not return. */
  private leave(episode: number): void {
    if (this.failure !== null) {
      this.episodes.delete(episode);
      return;
    }
    const { clock, plugin } = this.options;
    // A call of an environment has a time limit, and may wait for others.
    const isEnvironment = plugin.kind === 'environment';
    const forget = (): void => {
      this.episodes.delete(episode);
      if (this.isLeft && this.episodes.size === 0) void this.close();
    };
    const keepsThread = (): void => {
      this.isLeft = true;
      forget();
    };
    const cancel = isEnvironment ? () => {} : clock.schedule(LEAVE_MS, keepsThread);
    const limitMs = isEnvironment ? plugin.call_seconds * 1_000 : null;
    const left = (): void => {
      cancel();
      forget();
    };
    this.call(episode, 'end', {}, limitMs).then(left, left);
  }

  private async call(episode: number, method: string, params: object, limitMs: number | null): Promise<unknown> {
    const release = await this.permits?.acquire();
    let cancel = (): void => {};
    try {
      if (this.failure !== null) throw this.failure;
      const { id, reply } = this.calls.add({ episode, method });
      if (limitMs !== null) {
        cancel = this.options.clock.schedule(limitMs, () => {
          this.kill(this.failed(`${method} did not return within ${limitMs / 1000} s`), id);
        });
      }
      this.send({ type: 'call', id, episode, method, params });
      return await reply;
    } finally {
      cancel();
      release?.();
    }
  }

  private follow(): Promise<void> {
    const { child } = this;
    const reader = new LineReader(MAX_MESSAGE_BYTES, (line) => this.receive(line));
    child.stdout?.on('data', (chunk: Buffer) => {
      if (!reader.push(chunk))
        this.kill(this.failed(`a line has more than ${MAX_MESSAGE_BYTES} bytes`), this.onlyRunning());
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      // What plug-ins print goes to the log of the node.
      process.stderr.write(chunk);
      this.errorOutput = `${this.errorOutput}${chunk.toString()}`.slice(-QUOTED_CHARS);
    });
    // A failure to write means that the process has ended, which its exit reports.
    child.stdin?.on('error', () => {});
    return new Promise((resolve) => {
      child.once('error', (cause) => {
        const { path, python } = this.options.plugin;
        // Without the folder in which it starts, the error of a program is that the program does not exist.
        const isFolder = path === null || statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
        this.refuse(
          isFolder ? `the interpreter ${python} cannot be started: ${cause.message}` : `path: ${path} is no folder`,
        );
        this.ended(null, null);
        resolve();
      });
      child.once('exit', (code, signal) => {
        // Calls that begin while the rest of the output is read are not to blame.
        if (this.failure === null) this.culprit = this.onlyRunning();
        const streams = [child.stdout, child.stderr];
        const closed = new Promise((close) => child.once('close', close));
        void lastOutput({ streams, closed }, DRAIN_MS, this.options.clock).then(() => {
          for (const stream of streams) stream?.destroy();
          this.ended(code, signal);
          resolve();
        });
      });
    });
  }

  private receive(line: Buffer): void {
    if (this.failure !== null) return;
    let message: PythonMessage;
    try {
      message = messageSchema.parse(parseJson(line, MAX_VALUES));
    } catch (error) {
      this.kill(this.failed(`a message cannot be read: ${(error as Error).message}`), this.onlyRunning());
      return;
    }
    switch (message.type) {
      case 'ready':
        this.about = message.about;
        this.started.resolve();
        break;
      case 'broken':
        this.refuse(`${this.options.plugin.target} cannot be loaded: ${message.message}`);
        break;
      case 'result':
        this.calls.resolve(message.id, message.value);
        break;
      case 'error':
        this.reject(message);
        break;
      case 'call':
        void this.perform(message);
    }
  }

  private reject({ id, message, cause }: Extract<PythonMessage, { type: 'error' }>): void {
    const call = this.calls.find(id);
    if (call === undefined) return;
    const ofNode = cause === null ? undefined : this.episodes.get(call.episode)?.failures.get(cause);
    this.calls.reject(id, ofNode ?? new Error(message));
  }

  private async perform({ id, episode, method, params }: Extract<PythonMessage, { type: 'call' }>): Promise<void> {
    const running = this.episodes.get(episode);
    if (running === undefined) {
      const { code, message } = hasEndedError();
      this.send({ type: 'error', id, code, message });
      return;
    }
    running.waiting++;
    try {
      const value = await running.serve(method, params, running.abort.signal);
      this.send({ type: 'result', id, value: value ?? null });
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      running.failures.set(id, error);
      const { code, message } = asFloeError(error);
      this.send({ type: 'error', id, code, message });
    } finally {
      running.waiting--;
    }
  }

  private send(message: object): void {
    if (this.failure === null && this.child.stdin?.writable === true) {
      this.child.stdin.write(`${wellFormedJson(message)}\n`);
    }
  }

  private refuse(problem: string): void {
    const details = { key: this.label, plugin: this.options.name };
    this.kill(new FloeError('setup_failed', `${this.label}: ${problem}`, details), null);
  }

  private failed(problem: string): FloeError {
    return new FloeError('runtime_failed', `${this.label}: ${problem}`, { plugin: this.options.name });
  }

  private kill(reason: FloeError, culprit: number | null): void {
    if (this.failure === null) {
      this.failure = reason;
      this.culprit = culprit;
    }
    try {
      if (this.child.pid !== undefined) process.kill(-this.child.pid, 'SIGKILL');
    } catch {
      // The process has ended already.
    }
  }

  private ended(code: number | null, signal: NodeJS.Signals | null): void {
    if (this.hasSettled) return;
    this.hasSettled = true;
    this.failure ??= this.failed(`its process ended (${signal ?? code})`);
    // Processes that its code has started are ended as well.
    this.kill(this.failure, null);
    const last = this.errorOutput.trim().split('\n').at(-1) ?? '';
    this.started.reject(this.failure.code === 'setup_failed' ? this.failure : this.notStarted(last));
    this.calls.end((call, id) => (id === this.culprit ? this.blaming(call) : this.failure));
  }

  /** Returns the number of the only call whose code runs and does not wait for the node; `null` when there are several or none. */
  private onlyRunning(): number | null {
    const running = [...this.calls.entries()].filter(
      ([, { episode }]) => (this.episodes.get(episode)?.waiting ?? 0) === 0,
    );
    const [only] = running;
    return running.length === 1 && only !== undefined ? only[0] : null;
  }

  private notStarted(lastLine: string): FloeError {
    const message = `${this.failure?.message}${lastLine === '' ? '' : `: ${lastLine}`}`;
    return new FloeError('setup_failed', message, { key: this.label, plugin: this.options.name });
  }

  private blaming({ method }: Call): FloeError {
    const message = `code of this episode, in ${method}: ${this.failure?.message}`;
    return new FloeError('plugin_failed', message, { plugin: this.options.name });
  }
}

function hasEndedError(): FloeError {
  return new FloeError('cancelled', 'the episode has ended');
}

/** Returns the interpreter that the operator has named: itself, or by the folder of its virtual environment. */
function programOf(python: string): string {
  const isFolder = statSync(python, { throwIfNoEntry: false })?.isDirectory() === true;
  return isFolder ? join(python, 'bin', 'python') : python;
}
