// Submits a mix of tasks to a service while faults are injected, with a limited number of concurrent sessions. Also contains the procedure
// that most fault suites share.
import { type RandomSource, sleep, systemClock } from '@floe-rl/core';
import { until } from '../runner/until.ts';
import { curlAgent, Service, type ServiceOptions, type Verdict } from './service.ts';
import type { Trainer } from './trainer.ts';

/** Maximum time in ms in which all sessions must end after the last fault has ended. */
const SETTLE_MS = 90_000;
/** Time in ms after which `Feeder` checks once more whether the number of sessions in progress allows another task. */
const FEEDER_PAUSE_MS = 10;

/** Returns a random whole number from 0 to `limit` - 1, both inclusive. */
export function randomIndex(random: RandomSource, limit: number): number {
  return Math.floor(random() * limit);
}

/** Returns a random element of `values`. Throws RangeError when `values` is empty. */
export function pick<T>(random: RandomSource, values: readonly T[]): T {
  const value = values[randomIndex(random, values.length)];
  if (value === undefined) throw new RangeError('nothing to pick from');
  return value;
}

export type FeederOptions = {
  /** Maximum number of sessions that are in progress at the same time. The default is 20. With 0 the feeder submits no task. */
  readonly outstanding?: number;
  /**
   * Maximum time in seconds that an agent sleeps before its first model call, to imitate the run time of a real agent. The default is 0.
   */
  readonly pauseSeconds?: number;
  /** Maximum number of sessions of one task. The default is 5. */
  readonly samples?: number;
};

/** Submits a random mix of tasks to the service, for example with early stop or with a callback, and cancels some of them. */
export class Feeder {
  private readonly service: Service;
  private readonly trainer: Trainer;
  private readonly random: RandomSource;
  private readonly callbackUrl: string | null;
  private readonly options: Required<FeederOptions>;
  private readonly cancelling = new Set<Promise<void>>();
  private taskCount = 0;
  private sessionCount = 0;
  private hasStopped = false;

  constructor(
    service: Service,
    trainer: Trainer,
    random: RandomSource,
    callbackUrl: string | null,
    options: FeederOptions = {},
  ) {
    this.service = service;
    this.trainer = trainer;
    this.random = random;
    this.callbackUrl = callbackUrl;
    this.options = { outstanding: 20, pauseSeconds: 0, samples: 5, ...options };
  }

  /** Number of sessions that the feeder has submitted so far. */
  get submitted(): number {
    return this.sessionCount;
  }

  /**
   * Submits tasks until `total` sessions are acknowledged or `stop` is called. Records an error that the service returns as a violation.
   */
  async run(total = Number.POSITIVE_INFINITY): Promise<void> {
    try {
      while (!this.hasStopped && this.sessionCount < total) {
        if (this.trainer.outstanding().length < this.options.outstanding) {
          await this.submitOne(Math.min(this.options.samples, total - this.sessionCount));
        } else await sleep(systemClock, FEEDER_PAUSE_MS);
      }
      await Promise.all(this.cancelling);
    } catch (error) {
      this.trainer.report('submitting', error);
    }
  }

  stop(): void {
    this.hasStopped = true;
  }

  private async submitOne(samples: number): Promise<void> {
    const { service, trainer, random } = this;
    const kind = random();
    const id = `task-${service.mark}-${this.taskCount++}`;
    const idleSeconds = this.options.pauseSeconds * random();
    const idle = idleSeconds > 0 ? `sleep ${idleSeconds.toFixed(2)}` : '';
    const hasEarlyStop = kind < 0.1 && samples > 1;
    const isWithoutEvaluator = kind >= 0.1 && kind < 0.2;
    await trainer.submit(
      service.task({
        task_id: id,
        num_samples: samples,
        agent: {
          harness: 'shell',
          custom_shell: curlAgent(1 + randomIndex(random, 2), idle),
          env: { FLOE_FAULT_MARK: service.mark },
        },
        ...(hasEarlyStop ? { early_stop_min_usable_sessions: Math.ceil(samples / 2) } : {}),
        ...(isWithoutEvaluator ? { evaluator: null, callback_results: 'summary' as const } : {}),
        ...(this.callbackUrl !== null && kind > 0.5 ? { callback_url: this.callbackUrl } : {}),
        dispatch_priority: randomIndex(random, 3),
      }),
    );
    this.sessionCount += samples;
    if (kind >= 0.2 && kind < 0.25) this.cancelAfter(id, random() * 500);
  }

  private cancelAfter(id: string, delayMs: number): void {
    const cancelled = sleep(systemClock, delayMs)
      .then(() => this.trainer.cancel(id))
      .catch((error) => {
        if (!this.trainer.isStopped) this.trainer.report(`cancelling ${id}`, error);
      })
      .then(() => void this.cancelling.delete(cancelled));
    this.cancelling.add(cancelled);
  }
}

/** The result of a fault suite: the number of violated guarantees of each kind, and a sentence for each violation. */
export type SuiteRow = {
  readonly runs: number;
  readonly sessions: number;
  readonly lost: number;
  readonly duplicated: number;
  readonly leaked: number;
  readonly wrong: number;
  readonly slowestMs: number;
  readonly texts: readonly string[];
  /** A text that is printed after the suite's numbers, such as a further measured value. */
  readonly note?: string | undefined;
};

export type TrafficOptions = ServiceOptions & {
  readonly random: RandomSource;
  /** Options of the feeder, which submits the traffic. With `callbacks: false`, its tasks have no callback URLs. */
  readonly feeder?: FeederOptions & { readonly callbacks?: boolean };
  /** Called before the traffic starts, for example to start gateways that are connected through a proxy. */
  readonly prepare?: (service: Service) => Promise<void>;
};

/**
 * Starts a service under steady traffic, calls `harm` to inject faults, waits until every session has ended, and then checks all guarantees
 * of the service. `harm` may add to `trainer.violations`. The fields of the object that it returns are added to the suite's result.
 */
export async function underTraffic<T extends object>(
  { random, feeder: feederOptions = {}, prepare, ...options }: TrafficOptions,
  harm: (service: Service, trainer: Trainer) => Promise<T>,
): Promise<Omit<SuiteRow, 'runs' | 'note'> & T> {
  const service = await Service.start(options);
  try {
    await prepare?.(service);
    const trainer = service.trainer();
    const { callbacks = true, ...load } = feederOptions;
    const callbackUrl = callbacks ? await trainer.listen() : null;
    void trainer.read();
    const feeder = new Feeder(service, trainer, random, callbackUrl, load);
    const feeding = feeder.run();
    const extra = await harm(service, trainer);
    feeder.stop();
    await feeding;
    await trainer.untilSettled(SETTLE_MS);
    await untilCalledBack(trainer);
    return { ...rowOf(await service.verdict()), sessions: trainer.results.size, ...extra };
  } finally {
    await service.close();
  }
}

/** Returns all violations in a verdict as sentences, each with its kind; an empty list when there is none. */
export function complaints(verdict: Verdict): { readonly kind: FindingKind; readonly text: string }[] {
  return FINDING_KINDS.flatMap((kind) => verdict[kind].map((text) => ({ kind, text: `${kind}: ${text}` })));
}

export const FINDING_KINDS = ['lost', 'duplicated', 'leaked', 'wrong'] as const;
export type FindingKind = (typeof FINDING_KINDS)[number];

function rowOf(verdict: Verdict): Omit<SuiteRow, 'runs' | 'note' | 'sessions'> {
  return {
    lost: verdict.lost.length,
    duplicated: verdict.duplicated.length,
    leaked: verdict.leaked.length,
    wrong: verdict.wrong.length,
    slowestMs: verdict.slowestRecoveryMs,
    texts: complaints(verdict).map(({ text }) => text),
  };
}

/**
 * Waits until every callback that the service promised to the trainer has arrived. Records a violation for each that does not arrive within
 * `SETTLE_MS`.
 */
export async function untilCalledBack(trainer: Trainer): Promise<void> {
  const keys = [...trainer.tasks].filter(([, { hasCallback }]) => hasCallback).map(([id]) => `floe-task-${id}`);
  const missing = (): string[] => keys.filter((key) => !trainer.callbacks.has(key));
  await until(() => missing().length === 0, SETTLE_MS, 50);
  for (const key of missing()) trainer.violations.push(`callback ${key} was not sent`);
}
