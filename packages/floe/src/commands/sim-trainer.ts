import type { FloeClient } from '@floe-rl/client';
import { sleep, systemClock } from '@floe-rl/core';
import type { BatchReply, SessionResult } from '@floe-rl/core/schema';
import type { Command } from 'commander';
import { type ConnectionOptions, withClient, withConnectionOptions } from './connection.ts';
import { interruptible } from './lifetime.ts';
import { countOption, secondsOption } from './options.ts';
import { printJson, printLine } from './print.ts';

type Options = ConnectionOptions & {
  batches: string;
  stepSeconds: string;
  pushSeconds: string;
  size?: string;
  push: boolean;
};

/** Durations and contents of one step of the simulated trainer. */
type SimStep = {
  readonly batch: number;
  /** Seconds for which the trainer waited for the batch. */
  readonly waitSeconds: number;
  readonly groups: number;
  readonly trainedTokens: number;
  readonly meanStaleness: number;
  readonly maxStaleness: number;
};

/** A summary of all steps, for choosing the size of a cluster. */
type SimReport = {
  readonly steps: number;
  readonly seconds: number;
  /** Share of the time in which the trainer waited for batches. */
  readonly waitShare: number;
  readonly tokensPerSecond: number;
  readonly maxStaleness: number;
  /** A trainer that never waits would need this many times the present rollout capacity. At least 1. */
  readonly capacityFactor: number;
};

/** Registers the command that consumes batches as a trainer with given step times would, to size a cluster without a GPU. */
export function registerSimTrainer(program: Command): void {
  withConnectionOptions(
    program
      .command('sim-trainer <stream>')
      .description('consume the batches of a stream as a trainer with a given step time would, to size a cluster')
      .option('--batches <n>', 'number of batches to consume', '10')
      .option('--step-seconds <s>', 'time of an optimizer step', '60')
      .option('--push-seconds <s>', 'time of a weight update, during which the engines are paused', '5')
      .option('--no-push', 'do not pause the engines between steps')
      .option('--size <n>', "groups per batch (default: the stream's batch_size)"),
  ).action(async (stream: string, options: Options) => {
    const times = {
      step: secondsOption('--step-seconds', options.stepSeconds),
      push: secondsOption('--push-seconds', options.pushSeconds),
    };
    const report = await withClient(options, (client) =>
      interruptible((signal) => run(client, stream, options, times, signal)),
    );
    if (report === null) return;
    if (options.json) printJson(report);
    else printReport(report);
  });
}

async function run(
  client: FloeClient,
  stream: string,
  options: Options,
  times: { readonly step: number; readonly push: number },
  signal: AbortSignal,
): Promise<SimReport> {
  const steps: SimStep[] = [];
  const limit = countOption('--batches', options.batches);
  const size = options.size === undefined ? undefined : countOption('--size', options.size);
  const startMs = systemClock.monotonicMs();
  let policy = ((await client.batchStream(stream, signal)).policy_step ?? 0) + 1;
  let askedMs = systemClock.monotonicMs();
  for await (const batch of client.batches(stream, { size, policyVersion: () => `step-${policy}`, signal })) {
    const step = stepOf(batch, (systemClock.monotonicMs() - askedMs) / 1000);
    steps.push(step);
    if (!options.json) printStep(step);
    await sleep(systemClock, times.step * 1000, signal);
    if (options.push) await pushWeights(client, `step-${policy + 1}`, times.push, signal);
    policy += 1;
    askedMs = systemClock.monotonicMs();
    if (steps.length === limit) break;
  }
  return reportOf(steps, (systemClock.monotonicMs() - startMs) / 1000);
}

/** Pauses the engines for as long as a weight update would take. The engines are resumed also when the command is interrupted. */
async function pushWeights(client: FloeClient, version: string, seconds: number, signal: AbortSignal): Promise<void> {
  await client.pauseEngines('keep', { signal });
  try {
    await sleep(systemClock, seconds * 1000, signal);
    await client.setPolicyVersion(version, { signal });
  } finally {
    await client.resumeEngines();
  }
}

function stepOf({ batch, groups }: BatchReply, waitSeconds: number): SimStep {
  const results = groups.flatMap((group) => (group.results ?? []) as SessionResult[]);
  const staleness = groups.map((group) => group.staleness);
  return {
    batch: batch ?? 0,
    waitSeconds,
    groups: groups.length,
    trainedTokens: results.reduce((sum, { trainable_tokens }) => sum + trainable_tokens, 0),
    meanStaleness: staleness.reduce((sum, steps) => sum + steps, 0) / Math.max(1, staleness.length),
    maxStaleness: Math.max(0, ...staleness),
  };
}

/**
 * Summarises the steps of a run that took `seconds`. The first batch is left out of the waiting time, because it includes the start of the
 * stream, unless it is the only one.
 */
export function reportOf(steps: readonly SimStep[], seconds: number): SimReport {
  const [first, ...later] = steps;
  const counted = later.length > 0 ? later : steps;
  const before = later.length > 0 ? (first?.waitSeconds ?? 0) : 0;
  const waited = counted.reduce((sum, step) => sum + step.waitSeconds, 0);
  const total = Math.max(Number.EPSILON, seconds - before);
  const busy = Math.max(Number.EPSILON, total - waited);
  return {
    steps: steps.length,
    seconds,
    waitShare: waited / total,
    tokensPerSecond: steps.reduce((sum, step) => sum + step.trainedTokens, 0) / Math.max(Number.EPSILON, seconds),
    maxStaleness: Math.max(0, ...steps.map((step) => step.maxStaleness)),
    capacityFactor: total / busy,
  };
}

function printStep({ batch, waitSeconds, groups, trainedTokens, meanStaleness, maxStaleness }: SimStep): void {
  printLine(
    `batch ${batch}: waited ${waitSeconds.toFixed(1)} s, ${groups} groups, ${trainedTokens} trained tokens, ` +
      `staleness ${meanStaleness.toFixed(1)} (at most ${maxStaleness})`,
  );
}

function printReport({ steps, seconds, waitShare, tokensPerSecond, maxStaleness, capacityFactor }: SimReport): void {
  printLine();
  printLine(`${steps} steps in ${seconds.toFixed(0)} s, ${tokensPerSecond.toFixed(0)} trained tokens per second`);
  printLine(
    `the trainer waited ${Math.round(waitShare * 100)} % of the time; groups were at most ${maxStaleness} steps old`,
  );
  printLine(
    waitShare > 0.05
      ? `rollouts limit the training: ${capacityFactor.toFixed(1)} times as many sandboxes and engines would keep this trainer busy`
      : 'the trainer limits the training: further sandboxes or engines would not make it faster',
  );
}
