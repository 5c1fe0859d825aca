import { z } from 'zod';
import type { GraphNode, TokenGraph } from '../graph.ts';

/**
 * Why a completion is not trained. `no_tokens`: its engine reports no ids. `no_logprobs`: its engine reports ids without
 * log-probabilities. `empty`: its reply has no token. The other reasons are flags of the completion.
 */
export type ExclusionReason = 'no_tokens' | 'no_logprobs' | 'empty' | 'auxiliary' | 'abandoned' | 'undelivered';

/** The flags with which a completion is excluded unless the task lists them here. */
export const includeSchema = z
  .array(z.enum(['auxiliary', 'abandoned', 'undelivered']))
  .default([])
  .describe('train completions with these marks, too');
type Include = z.infer<typeof includeSchema>;

/**
 * Returns the completions that are not trained, as a map from completion id to reason. The flags `abandoned` and `undelivered` are ignored
 * for a reply that a later request repeats exactly as it was sampled, since the harness received and used it.
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
