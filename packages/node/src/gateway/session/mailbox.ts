import { setMaxListeners } from 'node:events';
import { callFromMailbox, mailboxError, type ProxySession } from '@floe-rl/capture';
import { asFloeError, FloeError, linkAbort } from '@floe-rl/core';
import type { ExecRequest, ExecResult, Runtime } from '@floe-rl/sandbox';

/** Maximum size of a request in bytes, as over HTTP. */
const MAX_REQUEST_BYTES = 64 * 1024 * 1024;
/** Maximum number of requests that are answered at the same time. Further requests wait. */
const MAX_WAITING = 32;
/** Names of requests, which the agent chooses. */
const NAME = /^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/;

/** Makes an empty mailbox. Argument: its directory. */
const PREPARE_SCRIPT = `rm -rf "$1/requests" "$1/replies" "$1/SESSION_END" && mkdir -p "$1/requests" "$1/replies"`;

/**
 * Waits until there are new requests, and prints their names. Arguments: the directory, and the names of the requests that are already being
 * answered, separated and surrounded by spaces. After a second without a new request it checks less often, to save CPU time.
 */
const POLL_SCRIPT = `tries=0
while :; do
  cd "$1/requests" || exit 3
  found=0
  for file in *.json; do
    name=\${file%.json}
    case "$2" in *" $name "*) continue ;; esac
    [ -f "$file" ] || continue
    printf '%s\\n' "$name"
    found=$((found + 1))
    [ "$found" -lt ${MAX_WAITING} ] || exit 0
  done
  [ "$found" = 0 ] || exit 0
  tries=$((tries + 1))
  if [ "$tries" -lt 50 ]; then sleep 0.02 2>/dev/null || sleep 1; else sleep 0.2 2>/dev/null || sleep 1; fi
done`;

/** Moves a reply from stdin into the mailbox, and removes the request. Arguments: the directory, the names of reply and request. */
const REPLY_SCRIPT = `cat >"$1/replies/$2.part" && mv -f "$1/replies/$2.part" "$1/replies/$2" && rm -f "$1/requests/$3"`;

/**
 * The node's side of a mailbox. A mailbox is a directory in the sandbox. The agent calls its model through it when the sandbox has no
 * connection to the proxy. A command in the sandbox waits for requests. Each request is a model call of the session, and another command
 * writes its reply.
 */
export class Mailbox {
  private readonly runtime: Runtime;
  private readonly session: ProxySession;
  private readonly dir: string;
  private readonly waiting = new Map<string, Promise<void>>();

  private constructor(runtime: Runtime, session: ProxySession, dir: string) {
    this.runtime = runtime;
    this.session = session;
    this.dir = dir;
  }

  /**
   * Makes the mailbox, runs `work`, and answers the mailbox's requests meanwhile. When the agent breaks the mailbox (`harness_failed`) or the
   * sandbox fails (`runtime_failed`), the signal that `work` received aborts with this error. Settles as `work` does. Rejects with the same
   * errors when the mailbox cannot be made.
   */
  static async during<T>(
    { runtime, session, dir }: { readonly runtime: Runtime; readonly session: ProxySession; readonly dir: string },
    work: (signal: AbortSignal) => Promise<T>,
    signal: AbortSignal,
  ): Promise<T> {
    const mailbox = new Mailbox(runtime, session, dir);
    await mailbox.run(PREPARE_SCRIPT, [dir], signal);
    const agent = linkAbort(signal);
    const serving = linkAbort(signal);
    const served = mailbox.serve(serving.signal).catch((error: unknown) => agent.abort(error));
    try {
      return await work(agent.signal);
    } finally {
      serving.abort(new FloeError('session_closed', 'the agent has ended'));
      await served;
      await Promise.allSettled(mailbox.waiting.values());
      serving.release();
      agent.release();
      await mailbox.end(signal);
    }
  }

  /** Answers requests until the signal aborts. Rejects when the mailbox is broken. */
  private async serve(signal: AbortSignal): Promise<void> {
    const failing = linkAbort(signal);
    // Each request that waits has several listeners, and there may be many of them.
    setMaxListeners(0, failing.signal);
    try {
      while (!signal.aborted) {
        const skipped = ` ${[...this.waiting.keys()].join(' ')} `;
        const { stdout } = await this.run(POLL_SCRIPT, [this.dir, skipped], failing.signal);
        const names = stdout.split('\n').filter((name) => name !== '');
        for (const name of names) this.start(name, failing);
        // A request stays in its directory until its reply is written, so the next poll need not wait for a free place.
        if (this.waiting.size >= MAX_WAITING) await Promise.race(this.waiting.values());
      }
    } catch (error) {
      if (!signal.aborted) throw failing.signal.aborted ? failing.signal.reason : error;
    } finally {
      failing.release();
    }
  }

  private start(name: string, failing: { readonly signal: AbortSignal; abort(reason: unknown): void }): void {
    if (!NAME.test(name)) {
      throw new FloeError('harness_failed', `the mailbox has a request with the name ${JSON.stringify(name)}`);
    }
    if (this.waiting.has(name)) return;
    const answered = this.answer(name, failing.signal)
      .catch((error: unknown) => failing.abort(error))
      .finally(() => this.waiting.delete(name));
    this.waiting.set(name, answered);
  }

  private async answer(name: string, signal: AbortSignal): Promise<void> {
    let reply: string;
    let suffix = '.json';
    try {
      const text = await this.read(name, signal);
      // The agent may have removed its request.
      if (text === null) return;
      reply = await callFromMailbox(this.session, text, signal);
    } catch (error) {
      if (signal.aborted) return;
      reply = mailboxError(asFloeError(error));
      suffix = '.error.json';
    }
    await this.run(REPLY_SCRIPT, [this.dir, `${name}${suffix}`, `${name}.json`], signal, reply);
  }

  private async read(name: string, signal: AbortSignal): Promise<Buffer | null> {
    try {
      return await this.runtime.readFile(`${this.dir}/requests/${name}.json`, MAX_REQUEST_BYTES, signal);
    } catch (error) {
      const { message } = asFloeError(error);
      throw new FloeError('bad_request', `the request cannot be read: ${message}`, {}, error);
    }
  }

  /** Lets clients that still wait know that there are no more replies. */
  private async end(signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    await this.runtime.writeFiles([{ path: `${this.dir}/SESSION_END`, content: '' }], signal).catch(() => undefined);
  }

  /** Runs a script. Rejects with `harness_failed` when it fails, which only the agent's changes to its mailbox cause. */
  private async run(
    script: string,
    args: readonly string[],
    signal: AbortSignal,
    stdin?: string,
  ): Promise<Pick<ExecResult, 'stdout'>> {
    const request: ExecRequest = {
      command: ['/bin/sh', '-c', script, 'floe-mailbox', ...args],
      isService: true,
      stdin,
    };
    const result = await this.runtime.exec(request, signal);
    if (result.exitCode === 0) return result;
    const why = result.stderr.trim().slice(-500) || `exit code ${result.exitCode ?? result.signal}`;
    throw new FloeError('harness_failed', `the agent has broken its mailbox ${this.dir}: ${why}`);
  }
}
