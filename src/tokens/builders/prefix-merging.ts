import { z } from 'zod';
import { parseAs } from '../../core/parse.ts';
import type { GraphNode, TokenGraph } from '../graph.ts';
import { assembleTrace } from './assembly.ts';
import type { Builder } from './builder.ts';
import { excludedCompletions, includeSchema } from './exclusion.ts';

export const prefixMergingConfigSchema = z.strictObject({
  on_drift: z
    .enum(['auto', 'merge', 'split'])
    .default('auto')
    .describe('at a re-rendered assistant turn: go on in the same trace, or open a new one; auto splits'),
  fork_owner: z
    .enum(['final_answer', 'longest', 'first'])
    .default('final_answer')
    .describe(
      'which of several chains trains the completions that they share: the one with the latest answer, the one with ' +
        'most sampled tokens, or the one that branched off first',
    ),
  include: includeSchema,
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
    const chains = ownedChains(graph, parsed, isTrained);
    return { traces: chains.map((nodes) => assembleTrace(graph, nodes, isTrained)), excluded };
  },
};

type Chain = [GraphNode, ...GraphNode[]];

/** Every trained completion in exactly one chain, chains by their first completion's arrival. */
function ownedChains(graph: TokenGraph, config: Config, isTrained: (node: GraphNode) => boolean): Chain[] {
  const prior = new Map<GraphNode, GraphNode | null>();
  for (const node of graph.nodes) prior.set(node, joinedParent(node, config));
  const owner = owningLeaves(graph, config, prior, isTrained);
  const chains = new Map<GraphNode, Chain>();
  for (const node of graph.nodes) {
    const leaf = owner.get(node);
    if (leaf === undefined) continue;
    const chain = chains.get(leaf);
    if (chain !== undefined) chain.push(node);
    // What is not trained and comes before anything that is, is in the first trained prompt already.
    else if (isTrained(node)) chains.set(leaf, [node]);
  }
  return [...chains.values()];
}

/** The parent within one trace; null where a trace has to begin. */
function joinedParent(node: GraphNode, config: Config): GraphNode | null {
  if (node.link === 'exact') return node.parent;
  if (node.link === 'rerendered' && config.on_drift === 'merge' && node.suffixStart !== null) return node.parent;
  return null;
}

/**
 * For each completion the leaf whose chain trains it: the best of the leaves below it. Since the best leaf below a
 * completion is also the best below every later one on its path, what a leaf owns is one unbroken run that ends in it.
 * Completions below which nothing is trained have no owner.
 */
function owningLeaves(
  graph: TokenGraph,
  config: Config,
  prior: ReadonlyMap<GraphNode, GraphNode | null>,
  isTrained: (node: GraphNode) => boolean,
): Map<GraphNode, GraphNode> {
  const sampled = new Map<GraphNode, number>();
  for (const node of graph.nodes) {
    const before = prior.get(node) ?? null;
    const own = isTrained(node) ? node.completion.responseIds.length : 0;
    sampled.set(node, own + (before === null ? 0 : (sampled.get(before) ?? 0)));
  }
  const owner = new Map<GraphNode, GraphNode>();
  for (const node of graph.nodes.toReversed()) {
    const leaf = owner.get(node) ?? (isTrained(node) ? node : undefined);
    if (leaf === undefined) continue;
    owner.set(node, leaf);
    const before = prior.get(node) ?? null;
    if (before === null) continue;
    const rival = owner.get(before);
    // Latest first, so for `first` every earlier branch takes over from the later ones.
    const { fork_owner } = config;
    const better = rival === undefined || fork_owner === 'first' || isBetterLeaf(leaf, rival, fork_owner, sampled);
    if (better) owner.set(before, leaf);
  }
  return owner;
}

function isBetterLeaf(
  a: GraphNode,
  b: GraphNode,
  by: 'final_answer' | 'longest',
  sampled: ReadonlyMap<GraphNode, number>,
): boolean {
  const difference = (sampled.get(a) ?? 0) - (sampled.get(b) ?? 0);
  if (by === 'longest' && difference !== 0) return difference > 0;
  const aWork = doesWork(a);
  return aWork === doesWork(b) ? a.completion.index > b.completion.index : aWork;
}

/** A compaction or title call may come last, but is not the answer. */
function doesWork({ completion }: GraphNode): boolean {
  return !completion.auxiliary && (completion.callKind === 'main' || completion.callKind === 'subagent');
}
