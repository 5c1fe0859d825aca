import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { GraphNode } from '../graph.ts';
import { assembleTrace } from './assembly.ts';
import type { Builder } from './builder.ts';
import { forkOwnerSchema, ownedChains } from './chains.ts';
import { creditSchema } from './credit.ts';
import { excludedCompletions, includeSchema } from './exclusion.ts';

export const prefixMergingConfigSchema = z.strictObject({
  on_drift: z
    .enum(['auto', 'merge', 'split'])
    .default('auto')
    .describe(
      'at a re-rendered assistant turn: go on in the same trace, or open a new one; auto goes on where the text is proven ' +
        'to be the same, only cut into other tokens',
    ),
  fork_owner: forkOwnerSchema,
  include: includeSchema,
  credit: creditSchema,
});
type Config = z.infer<typeof prefixMergingConfigSchema>;

/**
 * Each chain from a root to a leaf is a trace: the first prompt, then what was sampled (mask 1) and what stood between
 * (mask 0). Completions shared by several chains are trained in one of them, chosen by `fork_owner`; the others begin
 * with the prompt of the first completion that is theirs alone, so their context is complete and nothing is repeated
 * in a response. A break opens a new trace in the same way.
 */
export const prefixMergingBuilder: Builder = {
  name: 'prefix_merging',
  checkConfig(config) {
    parseAs(prefixMergingConfigSchema, config, 'builder.config', 'builder.config');
  },
  build(graph, config) {
    const parsed = parseAs(prefixMergingConfigSchema, config, 'builder.config', 'builder.config');
    const excluded = excludedCompletions(graph, parsed.include);
    const isTrained = (node: GraphNode): boolean => !excluded.has(node.completion.completionId);
    const chains = ownedChains(graph, parsed.fork_owner, (node) => joinedParent(node, parsed), isTrained);
    const traces = chains.map((nodes) => assembleTrace(graph, nodes, isTrained));
    return { traces, excluded, credit: parsed.credit };
  },
};

/** The parent within one trace; null where a trace has to begin. */
function joinedParent(node: GraphNode, { on_drift }: Config): GraphNode | null {
  if (node.link === 'exact') return node.parent;
  if (node.link !== 'rerendered' || node.suffixStart === null || on_drift === 'split') return null;
  return on_drift === 'merge' || node.drift === 'retokenized' ? node.parent : null;
}
