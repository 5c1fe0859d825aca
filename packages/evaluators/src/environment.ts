import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { EpisodeScores, Evaluator, TraceView } from './evaluator.ts';

const configSchema = z.strictObject({
  min_score: z
    .number()
    .optional()
    .describe('score from which the reward is 1, and below which it is 0; default: the reward is the score'),
});

/** The score that the environment of a floe agent gave, or the sum of the rewards of its tools. */
export const environmentEvaluator: Evaluator = {
  name: 'environment',
  freshRuntimeByDefault: false,
  checkConfig: (config) => void parseAs(configSchema, config, 'evaluator.config', 'evaluator.config'),
  async evaluate({ spec, episode = null, session }) {
    const { min_score: minScore } = parseAs(configSchema, spec.config, 'evaluator.config', 'evaluator.config');
    const score = episode?.score ?? null;
    if (episode === null || score === null) {
      const why = episode?.reason === undefined ? 'the task needs an environment' : `its episode: ${episode.reason}`;
      throw new FloeError('evaluator_failed', `environment: the agent gave no score; ${why}`);
    }
    const inTraces = new Set(session.traces.flatMap(({ completionIds }) => completionIds));
    const rewards = episode.replyRewards.filter(({ completionId }) => inTraces.has(completionId));
    const states = rewards.flatMap(({ completionId, stateHash }) =>
      stateHash === undefined ? [] : [[completionId, stateHash] as const],
    );
    return {
      reward: minScore === undefined ? score : Number(score >= minScore),
      details: { score, ...(states.length === 0 ? {} : { state_hashes: Object.fromEntries(states) }) },
      components: { score, ...prefixed(episode.seatScores) },
      stepRewards: Object.fromEntries(rewards.map(({ completionId, reward }) => [completionId, reward])),
      traceRewards: seatRewards(session.traces, episode),
    };
  },
};

/** Returns the score of its player for each trace of an episode with several players. */
function seatRewards(
  traces: readonly TraceView[],
  { seatScores, replyRewards }: EpisodeScores,
): Record<string, number> {
  const seats = new Map(replyRewards.map(({ completionId, seat }) => [completionId, seat]));
  return Object.fromEntries(
    traces.flatMap(({ traceId, completionIds }) => {
      const seat = completionIds.map((id) => seats.get(id)).find((name) => name !== undefined);
      const score = seat === undefined ? undefined : seatScores[seat];
      return score === undefined ? [] : [[traceId, score]];
    }),
  );
}

function prefixed(seatScores: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(seatScores).map(([seat, score]) => [`seat.${seat}`, score]));
}
