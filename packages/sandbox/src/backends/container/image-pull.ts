import { type Clock, type ErrorCode, FloeError, Semaphore, sleep } from '@floe-rl/core';
import { formatReference, parseReference } from '../../images/reference.ts';
import { type ContainerEngine, progressOf } from './engine-api.ts';

/** Pauses in milliseconds between tries of a pull when the registry limits the rate of pulls. */
const PAUSES_MS = [5_000, 20_000, 60_000] as const;

/** The codes of errors of a pull, by the engine's message. The first match counts. */
const FAILURES: readonly { readonly pattern: RegExp; readonly code: ErrorCode }[] = [
  { pattern: /toomanyrequests|too many requests|\b429\b/i, code: 'overloaded' },
  { pattern: /manifest unknown|not found|no such image|name unknown|\b404\b/i, code: 'not_found' },
  { pattern: /denied|unauthorized|authentication required|\b40[13]\b/i, code: 'forbidden' },
];

/** Pulls images into a container engine, several at the same time and each only once. */
export class ImagePulls {
  private readonly engine: ContainerEngine;
  private readonly clock: Clock;
  private readonly permits: Semaphore;
  private readonly running = new Map<string, Promise<void>>();

  constructor(engine: ContainerEngine, clock: Clock, maxPulls: number) {
    this.engine = engine;
    this.clock = clock;
    this.permits = new Semaphore(maxPulls);
  }

  /**
   * Pulls an image. Callers that ask for the same image at the same time share one pull, which continues when one of them stops waiting.
   * Rejects with `schema_violation` for an invalid reference, with `not_found` or `forbidden` when the registry refuses, and with
   * `runtime_failed` for every other failure, so that a session is retried.
   */
  async pull(reference: string): Promise<void> {
    const name = formatReference(parseReference(reference, 'runtime.image'));
    const running = this.running.get(name) ?? this.start(name).finally(() => this.running.delete(name));
    this.running.set(name, running);
    return running;
  }

  private async start(name: string): Promise<void> {
    const release = await this.permits.acquire();
    try {
      for (let tries = 0; ; tries++) {
        const reason = await this.tryPull(name);
        if (reason === null) return;
        const code = FAILURES.find(({ pattern }) => pattern.test(reason))?.code ?? 'runtime_failed';
        const pauseMs = PAUSES_MS[tries];
        if (code !== 'overloaded' || pauseMs === undefined) throw pullError(code, name, reason);
        await sleep(this.clock, pauseMs);
      }
    } finally {
      release();
    }
  }

  /** Resolves with the reason why the engine could not pull the image; `null` when it could. */
  private async tryPull(name: string): Promise<string | null> {
    const query = new URLSearchParams({ fromImage: name });
    const { status, body } = await this.engine.send(
      'POST',
      `/images/create?${query}`,
      null,
      new AbortController().signal,
    );
    let reason: string | null = null;
    // The reply has one JSON object per line. Most of the objects report progress.
    for (const line of body.toString().split('\n')) {
      const { error, message } = progressOf(line);
      reason = error ?? (status >= 300 ? message : undefined) ?? reason;
    }
    return reason ?? (status >= 300 ? `the container engine replied with status ${status}` : null);
  }
}

function pullError(code: ErrorCode, name: string, reason: string): FloeError {
  const message = `runtime.image: the image ${name} cannot be pulled: ${reason}`;
  return new FloeError(code === 'overloaded' ? 'runtime_failed' : code, message, { image: name, reason });
}
