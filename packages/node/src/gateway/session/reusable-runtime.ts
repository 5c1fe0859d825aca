import { abortAfter, asFloeError, type Clock, FloeError, raceAbort, sleep } from '@floe-rl/core';
import type { RuntimeReuse } from '@floe-rl/core/schema';
import {
  ARCHIVE_PREFIX,
  BorrowedRuntime,
  type ExecResult,
  type Runtime,
  type RuntimeSnapshot,
  type StartRequest,
} from '@floe-rl/sandbox';

/** Time in milliseconds between two tries of the health command. */
const HEALTH_POLL_MS = 250;
/** Maximum number of characters of a command's output, taken from its end, that an error message quotes. */
const OUTPUT_CHARS = 1_000;

/**
 * Script that removes files that floe leaves in a sandbox: files of evaluators in the home directory, which is the argument, and archives of
 * artifacts.
 */
const REMOVE_OWN_FILES = `rm -rf -- "$1"/floe-* "\${TMPDIR:-/tmp}"/${ARCHIVE_PREFIX}*`;

/** The parts of a start request that belong to one session. */
export type SessionCallbacks = Pick<StartRequest, 'onActivity' | 'onKill'>;

/** Paths at which all sessions of a sandbox open their proxies. */
export type SandboxPlace = { readonly socketPath: string; readonly egressPath: string };

/** Starts a sandbox with this name and these callbacks, and runs its prepare actions. */
export type StartSandbox = (own: Pick<StartRequest, 'name' | keyof SessionCallbacks>) => Promise<Runtime>;

type ReusableParts = {
  readonly reuse: RuntimeReuse;
  readonly place: SandboxPlace;
  /** Memory in MiB that the sandbox may use. */
  readonly memoryMb: number;
  readonly clock: Clock;
  /** Returns a name that no other sandbox of the node has. */
  readonly newName: () => string;
  /** Called when the sandbox that a session should get was not usable and is replaced. */
  readonly onUnhealthy: (error: FloeError) => void;
};

type Service = {
  readonly command: string;
  readonly stop: AbortController;
  /** Settles when all processes of the service have ended. */
  readonly done: Promise<void>;
  /** How the service ended; `null` while it runs. */
  ended: string | null;
};

/**
 * A sandbox that several sessions use, one after the other. The first session starts and prepares it, and it is reset after each session. The
 * commands, tools and proxies of a session end with the session. Services run as long as the sandbox.
 */
export class ReusableRuntime {
  readonly place: SandboxPlace;
  readonly memoryMb: number;
  private readonly parts: ReusableParts;
  private sandbox: Runtime | null = null;
  private sandboxName: string | null = null;
  private snapshot: RuntimeSnapshot | null = null;
  private services: Service[] = [];
  private session: SessionCallbacks = {};
  private borrowed: BorrowedRuntime | null = null;
  /** How the last try of the running health check failed; `null` before it ended. */
  private lastFailure: string | null = null;
  private useCount = 0;

  constructor(parts: ReusableParts) {
    this.parts = parts;
    this.place = parts.place;
    this.memoryMb = parts.memoryMb;
  }

  /** Name of the sandbox; `null` when there is none. */
  get name(): string | null {
    return this.sandboxName;
  }

  /** Number of sessions that used the sandbox. */
  get uses(): number {
    return this.useCount;
  }

  /** Whether another session may use the sandbox after a reset. */
  get isReusable(): boolean {
    return this.sandbox !== null && this.borrowed?.isSpoiled !== true && this.useCount < this.parts.reuse.max_uses;
  }

  /**
   * Gives the sandbox to a session. Starts it with `start` when there is none, or when it is not healthy. The session ends its use with the
   * method `stop` of the result. Rejects like `start`, with `prepare_failed` when the health check or a service fails, or with the reason of
   * `signal`; no sandbox is left then.
   */
  async open(start: StartSandbox, session: SessionCallbacks, signal: AbortSignal): Promise<Runtime> {
    this.session = session;
    try {
      if (this.sandbox !== null && !(await this.isHealthy(signal))) await this.stop();
      const sandbox = this.sandbox ?? (await this.startSandbox(start, signal));
      this.useCount += 1;
      this.borrowed = new BorrowedRuntime(sandbox);
      return this.borrowed;
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /**
   * Prepares the sandbox for another session. Rejects when the reset or the health check fails or takes too long, or with the reason of
   * `signal`. The detail `phase` of the error is `reset` or `health`.
   */
  async reset(signal: AbortSignal): Promise<void> {
    await this.within('reset', signal, (limited) => this.resetFiles(limited));
    await this.within('health', signal, (limited) => this.awaitHealthy(limited));
  }

  /** Ends the use of the session. Must be called before {@link reset}. Never rejects. */
  async endSession(): Promise<void> {
    this.session = {};
    await this.borrowed?.stop();
  }

  /** Ends the sandbox with all its processes. Never rejects. */
  async stop(): Promise<void> {
    const { sandbox, snapshot } = this;
    this.sandbox = null;
    this.snapshot = null;
    this.borrowed = null;
    this.useCount = 0;
    await this.stopServices();
    await sandbox?.stop();
    await snapshot?.release();
    this.sandboxName = null;
  }

  private async startSandbox(start: StartSandbox, signal: AbortSignal): Promise<Runtime> {
    const name = this.parts.newName();
    this.sandboxName = name;
    const sandbox = await start({
      name,
      onActivity: () => this.session.onActivity?.(),
      onKill: (reason) => this.session.onKill?.(reason),
    });
    this.sandbox = sandbox;
    if (this.parts.reuse.restore !== 'none') this.snapshot = await sandbox.snapshot(signal);
    try {
      this.startServices(sandbox);
      await this.within('health', signal, (limited) => this.awaitHealthy(limited));
    } catch (thrown) {
      signal.throwIfAborted();
      const { message, details } = asFloeError(thrown);
      throw new FloeError('prepare_failed', `runtime.reuse: ${message}`, details, thrown);
    }
    return sandbox;
  }

  private async resetFiles(signal: AbortSignal): Promise<void> {
    const sandbox = this.requireSandbox();
    const { restore, reset_command, services } = this.parts.reuse;
    sandbox.onProxiesReplaced?.();
    if (this.snapshot !== null) {
      await this.stopServices();
      await sandbox.restore(this.snapshot, signal);
      this.startServices(sandbox);
    }
    if (services.length > 0) this.refuseEndedService();
    if (restore !== 'all') {
      const command = ['/bin/sh', '-c', REMOVE_OWN_FILES, 'floe-reset', sandbox.paths.home];
      const removed = await sandbox.asRoot().exec({ command, isService: true }, signal);
      if (!succeeded(removed)) throw failure("the removal of floe's files", removed);
    }
    if (reset_command === null) return;
    const result = await sandbox.exec({ command: reset_command, isService: true }, signal);
    if (!succeeded(result)) throw failure('the reset command', result);
  }

  /** Runs the health command until it succeeds. */
  private async awaitHealthy(signal: AbortSignal): Promise<void> {
    this.lastFailure = null;
    for (;;) {
      this.refuseEndedService();
      const result = await this.runHealthCommand(signal);
      if (succeeded(result)) return;
      this.lastFailure = how(result);
      await sleep(this.parts.clock, HEALTH_POLL_MS, signal);
    }
  }

  /** Runs the health command once, in a sandbox that no session has used since the last check. */
  private async isHealthy(signal: AbortSignal): Promise<boolean> {
    this.sandbox?.onProxiesReplaced?.();
    try {
      this.refuseEndedService();
      const result = await this.within('health', signal, (limited) => this.runHealthCommand(limited));
      if (succeeded(result)) return true;
      throw failure('the health command', result);
    } catch (error) {
      signal.throwIfAborted();
      this.parts.onUnhealthy(asFloeError(error));
      return false;
    }
  }

  private runHealthCommand(signal: AbortSignal): Promise<ExecResult> {
    const command = this.parts.reuse.health_command ?? 'true';
    return this.requireSandbox().exec({ command, isService: true }, signal);
  }

  private startServices(sandbox: Runtime): void {
    this.services = this.parts.reuse.services.map((command) => {
      const stop = new AbortController();
      const ended = (how: string): void => {
        service.ended = how;
      };
      const done = sandbox.exec({ command, isService: true }, stop.signal).then(
        (result) => ended(how(result)),
        (error: unknown) => ended(asFloeError(error).message),
      );
      const service: Service = { command, stop, done, ended: null };
      return service;
    });
  }

  private async stopServices(): Promise<void> {
    const { services } = this;
    this.services = [];
    for (const { stop } of services) stop.abort(new FloeError('cancelled', 'the service was stopped'));
    await Promise.all(services.map(({ done }) => done));
  }

  private refuseEndedService(): void {
    const service = this.services.find(({ ended }) => ended !== null);
    if (service === undefined) return;
    throw new FloeError('runtime_failed', `the service "${service.command}" has ended: ${service.ended}`);
  }

  private requireSandbox(): Runtime {
    if (this.sandbox === null) throw new FloeError('internal', 'a sandbox is used that was not started');
    return this.sandbox;
  }

  /** Runs `work` with a signal that aborts when the time limit of the task for this phase has passed. */
  private async within<T>(
    phase: 'reset' | 'health',
    parent: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const { reuse, clock } = this.parts;
    const { timeout_seconds } = reuse;
    const late = (): FloeError => {
      const what = phase === 'reset' ? 'the reset' : 'the health check';
      const failed = phase === 'reset' || this.lastFailure === null ? '' : `; its last try: ${this.lastFailure}`;
      return new FloeError('runtime_failed', `${what} took longer than ${timeout_seconds} s${failed}`);
    };
    const limited = abortAfter(clock, timeout_seconds * 1000, late, parent);
    try {
      // A restore waits without a limit for commands that cannot be ended.
      return await raceAbort(work(limited.signal), limited.signal);
    } catch (thrown) {
      parent.throwIfAborted();
      const { code, message, details } = asFloeError(thrown, 'runtime_failed');
      throw new FloeError(code, message, { ...details, phase }, thrown);
    } finally {
      limited.release();
    }
  }
}

function succeeded({ exitCode, killedBy }: ExecResult): boolean {
  return exitCode === 0 && killedBy === null;
}

function failure(what: string, result: ExecResult): FloeError {
  return new FloeError('runtime_failed', `${what} failed: ${how(result)}`);
}

/** Describes how a command ended, as the end of a sentence. */
function how({ exitCode, signal, killedBy, stdout, stderr }: ExecResult): string {
  const end =
    killedBy !== null
      ? `it exceeded the limit on ${killedBy}`
      : exitCode === null
        ? `${signal} ended it`
        : `it exited with ${exitCode}`;
  const output = (stderr.trim() || stdout.trim()).slice(-OUTPUT_CHARS);
  return output === '' ? end : `${end}: ${output}`;
}
