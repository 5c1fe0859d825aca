import { z } from 'zod';
import type { GraphNode, TokenGraph } from '../graph.ts';

/**
 * Why a completion is not trained although it was sampled. `no_tokens`: its engine reports no ids; `no_logprobs`: its engine reports
 * ids without log-probabilities; `empty`: no token was sampled.
 */
export type ExclusionReason = 'no_tokens' | 'no_logprobs' | 'empty' | 'auxiliary' | 'abandoned' | 'undelivered';

/** The marks whose completions a task can choose to train nevertheless. */
export const includeSchema = z
  .array(z.enum(['auxiliary', 'abandoned', 'undelivered']))
  .default([])
  .describe('train completions with these marks, too');
type Include = z.infer<typeof includeSchema>;

/**
 * The reasons of the completions that are not trained, by completion id. The marks `abandoned` and `undelivered` are ignored for a
 * reply that a later request repeats exactly as it was sampled, since the harness received and used it.
 */
export function excludedCompletions(graph: TokenGraph, include: Include): Map<string, ExclusionReason> {
  const excluded = new Map<string, ExclusionReason>();
  for (const node of graph.nodes) {
    const reason = reasonOf(node, include);
    if (reason !== null) excluded.set(node.completion.completionId, reason);
  }
  return excluded;
}

function reasonOf(node: GraphNode, include: Include): ExclusionReason | null {
  const { completion } = node;
  const { capture, usage } = completion;
  if (capture.mode === 'text' && usage.completion_tokens > 0) return 'no_tokens';
  if (completion.responseIds.length === 0) return 'empty';
  if (capture.logprobs_mode === null) return 'no_logprobs';
  if (completion.auxiliary && !include.includes('auxiliary')) return 'auxiliary';
  const used = node.children.some((child) => child.link === 'exact');
  if (completion.abandoned && !used && !include.includes('abandoned')) return 'abandoned';
  if (completion.undelivered && !used && !include.includes('undelivered')) return 'undelivered';
  return null;
}
