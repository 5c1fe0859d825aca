import { sessionSummary, unusableReason } from '@floe-rl/core/protocol';
import { type Outcome, type SessionResult, trajectorySchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { buildTrajectory } from '../../../capture/src/tokens/trajectory.ts';
import { randomSession } from '../../../capture/test/tokens/random-session.ts';

const OUTCOMES = ['completed', 'completed', 'completed', 'truncated_turns', 'agent_timeout', 'infra_error'] as const;

const spec = fc.oneof(
  fc.record({
    strategy: fc.constant('prefix_merging'),
    config: fc.record({
      constrained: fc.constantFrom('mask', 'train'),
      credit: fc.constantFrom('broadcast', 'divide'),
    }),
  }),
  fc.constant({ strategy: 'step', config: {} }),
  fc.constant({ strategy: 'per_request', config: {} }),
);

const session = fc.record({
  session: randomSession,
  task: fc.nat({ max: 2 }),
  reward: fc.constantFrom(0, 1, 0.25, -3, null),
  outcome: fc.constantFrom<Outcome>(...OUTCOMES),
});

/**
 * Generates the results of up to eight sessions of three tasks. Their traces come from random sessions with forks, sub-agents, re-rendered
 * turns, masked replies and several policy versions.
 */
export const randomResults: fc.Arbitrary<SessionResult[]> = fc
  .tuple(spec, fc.array(session, { minLength: 1, maxLength: 8 }))
  .map(([builder, sessions]) => sessions.map((one, index) => resultOf(builder, one, index)));

type Spec = typeof spec extends fc.Arbitrary<infer T> ? T : never;
type RandomResult = typeof session extends fc.Arbitrary<infer T> ? T : never;

function resultOf(
  builder: Spec,
  { session: random, task, reward, outcome }: RandomResult,
  index: number,
): SessionResult {
  const { json } = buildTrajectory({
    spec: builder,
    completions: random.completions,
    graphOptions: random.options,
    status: 'COMPLETED',
    reward,
    error: null,
    metadata: {},
  });
  const trajectory = trajectorySchema.parse(JSON.parse(json.toString()));
  const attempt = {
    session_id: `session-${index}`,
    task_id: `task-${task}`,
    sample_index: index,
    attempt: 1,
    epoch: 1,
  };
  const tokens = trajectory.traces.reduce(
    (sum, { loss_mask }) => sum + loss_mask.filter((mask) => mask === 1).length,
    0,
  );
  const summary = sessionSummary(attempt, outcome, {
    reward,
    trainable_tokens: tokens,
    trace_count: trajectory.traces.length,
  });
  return { ...summary, unusable: unusableReason(summary, true), trajectory };
}
