import type { MeasureKind, SessionSummary } from '@floe-rl/core/schema';
import type { Measure } from '../../store/index.ts';

/** Maximum number of measures of one kind in a session, because plug-ins and agents choose the names of some kinds. */
const MAX_NAMES = 32;
const MAX_NAME_CHARACTERS = 128;
/** Beginning of the names of an episode's metrics that count hints. */
const HINTS = 'hints.';

/** Rewards nearer to 0 than this are 0 in facts, because PostgreSQL refuses to compute squares that are too small for a number. */
const SMALLEST_REWARD = 1e-100;

/** Returns a reward as it is stored in facts and measures. */
export function storedReward(reward: number): number {
  return Math.abs(reward) < SMALLEST_REWARD ? 0 : reward;
}

/** Returns the measures of a session: the counts, times and rewards of its summary that have names. */
export function measuresOf(summary: SessionSummary): Measure[] {
  const { audit, calls, agent, reward_components: components, cost } = summary;
  const hints = Object.entries(agent?.episode?.metrics ?? {}).filter(([name]) => name.startsWith(HINTS));
  const { links = {}, drift = {}, tokens } = audit ?? {};
  const rendered = calls === null ? {} : { ...calls.rendered, spliced: calls.spliced };
  return [
    ...counted('link', Object.entries(links)),
    ...counted('drift', Object.entries(drift)),
    ...counted('rendered', Object.entries(rendered)),
    ...counted('excluded', Object.entries(tokens?.excluded ?? {})),
    ...counted(
      'hint',
      hints.map(([name, count]) => [name.slice(HINTS.length), count]),
    ),
    ...counted('cost', costCounts(cost)),
    ...toolMeasures(calls),
    ...rewardMeasures(components),
  ];
}

/** Returns the costs that are not columns of the facts, as whole numbers. */
function costCounts(cost: SessionSummary['cost']): [string, number][] {
  if (cost === null) return [];
  const { prompt_tokens, node_cpu_ms, stored_bytes } = cost;
  return [
    ['prompt_tokens', prompt_tokens],
    ['node_cpu_us', node_cpu_ms * 1000],
    ['stored_bytes', stored_bytes],
  ];
}

function measure(kind: MeasureKind, name: string, fields: Partial<Measure>): Measure {
  // PostgreSQL stores no NUL in texts.
  const label = name.slice(0, MAX_NAME_CHARACTERS).replaceAll('\0', '\u{fffd}');
  return { kind, name: label, bin: -1, count: 0, failures: 0, sum: 0, square_sum: 0, ...fields };
}

function counted(kind: MeasureKind, counts: readonly (readonly [string, number])[]): Measure[] {
  return counts
    .filter(([, count]) => count > 0)
    .slice(0, MAX_NAMES)
    .map(([name, count]) => measure(kind, name, { count: Math.round(count) }));
}

/**
 * Returns the measures of each tool. Answered calls are counted by the interval of their time. One more measure has the number of unanswered
 * calls, all failures and the sum of the times.
 */
function toolMeasures(calls: SessionSummary['calls']): Measure[] {
  return (calls?.tools ?? []).slice(0, MAX_NAMES).flatMap(({ name, calls: all, failures, total_ms, times }) => {
    const timed = Object.entries(times);
    const answered = timed.reduce((sum, [, count]) => sum + count, 0);
    return [
      measure('tool', name, { count: Math.max(0, all - answered), failures, sum: total_ms }),
      ...timed.map(([bin, count]) => measure('tool', name, { bin: Number(bin), count })),
    ];
  });
}

function rewardMeasures(components: SessionSummary['reward_components']): Measure[] {
  return Object.entries(components)
    .slice(0, MAX_NAMES)
    .map(([name, given]) => {
      if (given === null) return measure('reward', name, { failures: 1 });
      const value = storedReward(given);
      return measure('reward', name, { count: 1, sum: value, square_sum: value * value });
    });
}
