import type { EnginePool } from '../../engines/pool.ts';
import type { Completion } from '../../tokens/completion.ts';
import { proveSameText } from '../../tokens/drift-proof.ts';
import type { GraphOptions } from '../../tokens/graph.ts';
import type { Attempt } from './attempt.ts';

/** Decoding takes engines milliseconds; one that takes this long is not answering, and the result must not wait for it. */
const PROOF_MS = 10_000;

/** The part of a pool that answers here. */
export type Decoder = Pick<EnginePool, 'info' | 'modeOf' | 'detokenize'>;

/**
 * What the engines of an attempt's pool know of its completions: the ids that close a turn, and whether a turn that was rendered
 * otherwise than sampled is the same text. What they do not answer in time stays unproven. Never rejects.
 */
export async function graphOptionsOf(
  attempt: Attempt,
  completions: readonly Completion[],
  engines: Decoder,
): Promise<GraphOptions> {
  const { pool } = attempt.lease.task.engine;
  // The pool may have been cleared since the session ended.
  const present = engines.info().some((engine) => engine.pool === pool);
  const closeIds = present ? engines.modeOf(pool, 'auto').template.close_ids : [];
  const names = { completionId: `${attempt.id}.drift`, sessionId: attempt.id, pool };
  const timer = attempt.newTimer(PROOF_MS);
  const sameText = await timer.run('build', null, attempt.signal, (signal) =>
    proveSameText(completions, closeIds, (ids) => engines.detokenize(ids, names, signal)),
  );
  return { closeIds, sameText };
}
