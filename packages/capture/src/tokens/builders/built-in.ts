import { parseAs } from '@floe-rl/core';
import { z } from 'zod';
import type { GraphNode } from '../graph.ts';
import { assembleTrace } from './assembly.ts';
import { type Builder, creditSchema } from './builder.ts';
import { forkOwnerSchema, ownedChains } from './chains.ts';
import { constrainedSchema, excludedCompletions, includeSchema } from './exclusion.ts';

const perRequestConfigSchema = z.strictObject({
  include: includeSchema,
  constrained: constrainedSchema,
  credit: creditSchema,
});

/**
 * Makes a separate trace of each trainable completion: its prompt, and its response with mask 1. Every trained token therefore has the context
 * in which it was sampled.
 */
const perRequestBuilder: Builder = {
  name: 'per_request',
  checkConfig(config) {
    parseConfig(perRequestConfigSchema, config);
  },
  build(graph, config) {
    const { include, constrained, credit } = parseConfig(perRequestConfigSchema, config);
    const excluded = excludedCompletions(graph, include, constrained);
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
  constrained: constrainedSchema,
  credit: creditSchema,
});

/**
 * Makes one trace of each chain, which is a path of completions from a root to a leaf of the token graph. The trace has the first prompt,
 * then the sampled tokens (mask 1) and the tokens between them (mask 0). Completions that several chains share are trained in only one of
 * them, chosen by `fork_owner`. The trace of every other chain starts with the prompt of the chain's first completion that is not shared.
 * This prompt contains the shared completions as context, so the trace's response repeats no token of another trace. A new trace starts in
 * the same way at a re-rendered turn that `on_drift` does not merge.
 */
const prefixMergingBuilder: Builder = {
  name: 'prefix_merging',
  checkConfig(config) {
    parseConfig(prefixMergingConfigSchema, config);
  },
  build(graph, config) {
    const parsed = parseConfig(prefixMergingConfigSchema, config);
    const excluded = excludedCompletions(graph, parsed.include, parsed.constrained);
    const isTrained = (node: GraphNode): boolean => !excluded.has(node.completion.completionId);
    const chains = ownedChains(graph, parsed.fork_owner, (node) => joinedParent(node, parsed.on_drift), isTrained);
    const traces = chains.map((nodes) => assembleTrace(graph, nodes, isTrained));
    return { traces, excluded, credit: parsed.credit };
  },
};

/** Returns the parent that `node` continues in the same trace; `null` when a new trace starts at `node`. */
function joinedParent(node: GraphNode, on_drift: 'auto' | 'merge' | 'split'): GraphNode | null {
  if (node.link === 'exact') return node.parent;
  if (node.link !== 'rerendered' || node.suffixStart === null || on_drift === 'split') return null;
  return on_drift === 'merge' || node.drift === 'retokenized' ? node.parent : null;
}

const stepConfigSchema = z.strictObject({
  fork_owner: forkOwnerSchema,
  include: includeSchema,
  constrained: constrainedSchema,
  credit: creditSchema,
});

/**
 * Makes a separate trace of each trainable completion, in the context in which it was sampled, and gives it a position. Each chain of
 * completions that continue each other is an episode, and each trainable completion is one turn of it. The turns of an episode are adjacent
 * and in order, and the last one is marked. A re-rendered turn does not end an episode, since every turn has its own prompt. A fork, a new
 * root or other tools start another episode.
 */
const stepBuilder: Builder = {
  name: 'step',
  checkConfig(config) {
    parseConfig(stepConfigSchema, config);
  },
  build(graph, config) {
    const { fork_owner, include, constrained, credit } = parseConfig(stepConfigSchema, config);
    const excluded = excludedCompletions(graph, include, constrained);
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
