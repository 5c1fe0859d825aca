import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { GraphNode } from '../graph.ts';
import { assembleTrace } from './assembly.ts';
import { type Builder, creditSchema } from './builder.ts';
import { forkOwnerSchema, ownedChains } from './chains.ts';
import { excludedCompletions, includeSchema } from './exclusion.ts';

const perRequestConfigSchema = z.strictObject({ include: includeSchema, credit: creditSchema });

/** Makes a separate trace of each trainable completion: its prompt, and its response with mask 1. The context is always exact. */
const perRequestBuilder: Builder = {
  name: 'per_request',
  checkConfig(config) {
    parseConfig(perRequestConfigSchema, config);
  },
  build(graph, config) {
    const { include, credit } = parseConfig(perRequestConfigSchema, config);
    const excluded = excludedCompletions(graph, include);
    const trained = graph.nodes.filter((node) => !excluded.has(node.completion.completionId));
    return { traces: trained.map((node) => assembleTrace(graph, [node], () => true)), excluded, credit };
  },
};

const prefixMergingConfigSchema = z.strictObject({
  on_drift: z
    .enum(['auto', 'merge', 'split'])
    .default('auto')
    .describe(
      'at a re-rendered assistant turn: merge continues the same trace, split starts a new one; auto merges where the text is ' +
        'proven to be the same and only its tokenization differs',
    ),
  fork_owner: forkOwnerSchema,
  include: includeSchema,
  credit: creditSchema,
});

/**
 * Makes one trace of each chain of completions from a root to a leaf of the graph: the first prompt, then the sampled tokens (mask 1) and
 * the tokens between them (mask 0). Completions that several chains share are trained in one of them, chosen by `fork_owner`. Every other
 * chain starts with the prompt of its first completion that is not shared, so that its context is complete and its response repeats no
 * token of another trace. A new trace starts in the same way at a re-rendered turn that `on_drift` does not merge.
 */
const prefixMergingBuilder: Builder = {
  name: 'prefix_merging',
  checkConfig(config) {
    parseConfig(prefixMergingConfigSchema, config);
  },
  build(graph, config) {
    const parsed = parseConfig(prefixMergingConfigSchema, config);
    const excluded = excludedCompletions(graph, parsed.include);
    const isTrained = (node: GraphNode): boolean => !excluded.has(node.completion.completionId);
    const chains = ownedChains(graph, parsed.fork_owner, (node) => joinedParent(node, parsed.on_drift), isTrained);
    const traces = chains.map((nodes) => assembleTrace(graph, nodes, isTrained));
    return { traces, excluded, credit: parsed.credit };
  },
};

/** Returns the parent that `node` continues in the same trace; `null` when a trace starts at `node`. */
function joinedParent(node: GraphNode, on_drift: 'auto' | 'merge' | 'split'): GraphNode | null {
  if (node.link === 'exact') return node.parent;
  if (node.link !== 'rerendered' || node.suffixStart === null || on_drift === 'split') return null;
  return on_drift === 'merge' || node.drift === 'retokenized' ? node.parent : null;
}

const stepConfigSchema = z.strictObject({
  fork_owner: forkOwnerSchema,
  include: includeSchema,
  credit: creditSchema,
});

/**
 * Makes a separate trace, in its exact context, of each trainable completion, and gives it a position: each chain of completions is an
 * episode, and each completion is one turn of it. The turns of an episode are adjacent and in order, and the last one is marked. Drift
 * does not end an episode, since every turn has its own prompt; a fork, a new root or other tools start another episode.
 */
const stepBuilder: Builder = {
  name: 'step',
  checkConfig(config) {
    parseConfig(stepConfigSchema, config);
  },
  build(graph, config) {
    const { fork_owner, include, credit } = parseConfig(stepConfigSchema, config);
    const excluded = excludedCompletions(graph, include);
    const isTrained = (node: GraphNode): boolean => !excluded.has(node.completion.completionId);
    const chains = ownedChains(graph, fork_owner, (node) => node.parent, isTrained);
    const traces = chains.flatMap((chain, episode) => {
      const turns = chain.filter(isTrained);
      return turns.map((node, turn) => ({
        ...assembleTrace(graph, [node], () => true),
        step: { episode, turn, last: turn === turns.length - 1 },
      }));
    });
    return { traces, excluded, credit };
  },
};

export const BUILT_IN_BUILDERS: readonly Builder[] = [prefixMergingBuilder, perRequestBuilder, stepBuilder];

function parseConfig<T extends z.ZodType>(schema: T, config: Readonly<Record<string, unknown>>): z.output<T> {
  return parseAs(schema, config, 'builder.config', 'builder.config');
}
