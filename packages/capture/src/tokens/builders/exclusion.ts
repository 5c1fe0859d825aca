import { z } from 'zod';
import type { GraphNode, TokenGraph } from '../graph.ts';

/**
 * Why a completion is not trained. `no_tokens`: its engine reports no token ids. `no_logprobs`: its engine reports ids without
 * log-probabilities. `empty`: its reply has no token. `constrained`: a forced tool call or a response format restricted its tokens. The
 * other reasons are flags of {@link Completion}.
 */
export type ExclusionReason =
  | 'no_tokens'
  | 'no_logprobs'
  | 'empty'
  | 'auxiliary'
  | 'abandoned'
  | 'undelivered'
  | 'constrained';

/** Flags that exclude a completion from training, unless the task lists them in `include`. */
export const includeSchema = z
  .array(z.enum(['auxiliary', 'abandoned', 'undelivered']))
  .default([])
  .describe('train completions with these marks, too');
type Include = z.infer<typeof includeSchema>;

/**
 * Whether a reply is trained when a forced tool call or a response format restricted which tokens the engine could sample. The default
 * `mask` does not train it, because the log-probabilities that the engine reports depend on the restriction: the only allowed token, for
 * example, has the log-probability 0. A trainer computes log-probabilities without the restriction and gets other values. In vLLM and SGLang
 * even raw log-probabilities depend on the restriction.
 */
export const constrainedSchema = z
  .enum(['mask', 'train'])
  .default('mask')
  .describe(
    'replies whose tokens a forced tool call or a response format restricted; mask: not trained, only context of later replies',
  );
type Constrained = z.infer<typeof constrainedSchema>;

/**
 * Returns the completions that are not trained, as a map from completion id to reason. The flags `abandoned` and `undelivered` are ignored
 * for a reply that a later request contains exactly as it was sampled, since the harness received and used this reply. A constrained reply
 * that has such a flag is counted under the flag.
 */
export function excludedCompletions(
  graph: TokenGraph,
  include: Include,
  constrained: Constrained = 'mask',
): Map<string, ExclusionReason> {
  const excluded = new Map<string, ExclusionReason>();
  for (const node of graph.nodes) {
    const reason = reasonOf(node, include, constrained);
    if (reason !== null) excluded.set(node.completion.completionId, reason);
  }
  return excluded;
}

function reasonOf(node: GraphNode, include: Include, constrained: Constrained): ExclusionReason | null {
  const { completion } = node;
  const { capture, usage } = completion;
  if (capture.mode === 'text' && usage.completion_tokens > 0) return 'no_tokens';
  if (completion.responseIds.length === 0) return 'empty';
  if (capture.logprobs_mode === null) return 'no_logprobs';
  if (completion.auxiliary && !include.includes('auxiliary')) return 'auxiliary';
  const used = node.children.some((child) => child.link === 'exact');
  if (completion.abandoned && !used && !include.includes('abandoned')) return 'abandoned';
  if (completion.undelivered && !used && !include.includes('undelivered')) return 'undelivered';
  if (completion.request.constraint !== null && constrained === 'mask') return 'constrained';
  return null;
}
