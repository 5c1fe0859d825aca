import { asFloeError, FloeError, linkAbort } from '@floe-rl/core';
import type { Isolation, RuntimeBackend } from '@floe-rl/core/schema';
import type { SandboxFile } from '../api/files.ts';
import type { ExecRequest, ExecResult, Runtime, RuntimePaths, RuntimeSnapshot } from '../api/runtime.ts';
import type { RuntimeTools } from '../api/tools.ts';

/** What a session has started in a sandbox that it does not own, and whether the session still uses it. */
class Borrowing {
  private readonly stopped = new AbortController();
  private readonly running = new Set<Promise<unknown>>();
  private readonly tools = new Set<RuntimeTools>();
  private survived = false;

  /** Whether a process of the session could not be ended. */
  get hasSurvivors(): boolean {
    return this.survived;
  }

  async use<T>(signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const linked = linkAbort(signal, this.stopped.signal);
    linked.signal.throwIfAborted();
    const running = work(linked.signal);
    this.running.add(running);
    try {
      return await running;
    } catch (error) {
      if (asFloeError(error).details.unkillable === true) this.survived = true;
      throw error;
    } finally {
      linked.release();
      this.running.delete(running);
    }
  }

  /** Opens tools that are closed when the session ends. */
  openTools(open: (signal: AbortSignal) => Promise<RuntimeTools>, signal: AbortSignal): Promise<RuntimeTools> {
    return this.use(signal, async (linked) => {
      const tools = await open(linked);
      if (this.stopped.signal.aborted) await tools.close();
      this.stopped.signal.throwIfAborted();
      this.tools.add(tools);
      return tools;
    });
  }

  async end(reason: FloeError): Promise<void> {
    this.stopped.abort(reason);
    await Promise.all([...this.tools].map((tools) => tools.close()));
    await Promise.allSettled(this.running);
  }
}

/**
 * A sandbox as one of several sessions sees it. {@link stop} ends what this session started in the sandbox, but not the sandbox, which its
 * owner then uses for another session. After the stop the session cannot use the sandbox any more.
 */
export class BorrowedRuntime implements Runtime {
  readonly backend: RuntimeBackend;
  readonly isolation: Isolation;
  readonly paths: RuntimePaths;
  readonly proxyOrigin: string;
  readonly mcpCommand: readonly string[];
  private readonly owned: Runtime;
  private readonly borrowing: Borrowing;

  constructor(owned: Runtime, borrowing = new Borrowing()) {
    this.owned = owned;
    this.borrowing = borrowing;
    this.backend = owned.backend;
    this.isolation = owned.isolation;
    this.paths = owned.paths;
    this.proxyOrigin = owned.proxyOrigin;
    this.mcpCommand = owned.mcpCommand;
  }

  /** Whether a process of the session could not be ended, so that no other session may use the sandbox. */
  get isSpoiled(): boolean {
    return this.borrowing.hasSurvivors;
  }

  exec(request: ExecRequest, signal: AbortSignal): Promise<ExecResult> {
    return this.borrowing.use(signal, (linked) => this.owned.exec(request, linked));
  }

  writeFiles(files: readonly SandboxFile[], signal: AbortSignal): Promise<void> {
    return this.borrowing.use(signal, (linked) => this.owned.writeFiles(files, linked));
  }

  uploadDir(hostDir: string, target: string, signal: AbortSignal): Promise<void> {
    return this.borrowing.use(signal, (linked) => this.owned.uploadDir(hostDir, target, linked));
  }

  readFile(path: string, maxBytes: number, signal: AbortSignal): Promise<Buffer | null> {
    return this.borrowing.use(signal, (linked) => this.owned.readFile(path, maxBytes, linked));
  }

  openTools(signal: AbortSignal): Promise<RuntimeTools> {
    return this.borrowing.openTools((linked) => this.owned.openTools(linked), signal);
  }

  snapshot(signal: AbortSignal): Promise<RuntimeSnapshot> {
    return this.borrowing.use(signal, (linked) => this.owned.snapshot(linked));
  }

  restore(snapshot: RuntimeSnapshot, signal: AbortSignal): Promise<void> {
    return this.borrowing.use(signal, (linked) => this.owned.restore(snapshot, linked));
  }

  asRoot(): Runtime {
    return new BorrowedRuntime(this.owned.asRoot(), this.borrowing);
  }

  stop(): Promise<void> {
    return this.borrowing.end(
      new FloeError('runtime_failed', `the session no longer uses its ${this.backend} sandbox`),
    );
  }
}
