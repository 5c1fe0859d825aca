import { z } from 'zod';
import type { GraphNode, TokenGraph } from '../graph.ts';

export const forkOwnerSchema = z
  .enum(['final_answer', 'longest', 'first'])
  .default('final_answer')
  .describe(
    'which of several chains trains the completions that they share: the one with the latest answer, the one with ' +
      'most sampled tokens, or the one that branched off first',
  );
export type ForkOwner = z.infer<typeof forkOwnerSchema>;

/** A list of completions. Each completion continues the completion before it. */
export type Chain = [GraphNode, ...GraphNode[]];

/**
 * Distributes the trained completions to chains. Each trained completion is in exactly one chain, and a chain starts and ends with a trained
 * completion. `joined` takes a completion and returns the completion that precedes it in its chain, or `null` when a chain starts there. The
 * chains are ordered by the arrival of their first completion.
 */
export function ownedChains(
  graph: TokenGraph,
  forkOwner: ForkOwner,
  joined: (node: GraphNode) => GraphNode | null,
  isTrained: (node: GraphNode) => boolean,
): Chain[] {
  const prior = new Map<GraphNode, GraphNode | null>();
  for (const node of graph.nodes) prior.set(node, joined(node));
  const owner = owningLeaves(graph, forkOwner, prior, isTrained);
  const chains = new Map<GraphNode, Chain>();
  for (const node of graph.nodes) {
    const leaf = owner.get(node);
    if (leaf === undefined) continue;
    const chain = chains.get(leaf);
    if (chain !== undefined) chain.push(node);
    // A chain never starts with an untrained completion, because the prompt of the first trained completion after it already contains the
    // untrained one.
    else if (isTrained(node)) chains.set(leaf, [node]);
  }
  return [...chains.values()];
}

/**
 * Decides which chain trains each completion. A chain is named by its leaf, which is the last completion on a path of the graph, and the
 * result maps each completion to the leaf of its chain. When several leaves continue a completion, the best one according to `forkOwner` is
 * chosen. The same leaf is then chosen for all later completions on the path to it, so a chain is one unbroken run of completions that ends
 * at its leaf. An untrained completion that no trained completion continues is not in the map.
 */
function owningLeaves(
  graph: TokenGraph,
  forkOwner: ForkOwner,
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
    // Nodes are visited from the latest to the earliest. With `first`, each branch therefore replaces all later branches, so that the
    // earliest branch becomes the owner.
    const better = rival === undefined || forkOwner === 'first' || isBetterLeaf(leaf, rival, forkOwner, sampled);
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
  const isAnswer = canBeAnswer(a);
  return isAnswer === canBeAnswer(b) ? a.completion.index > b.completion.index : isAnswer;
}

/**
 * Whether the completion can be the final answer of the agent. The last call may be a compaction or title call, which is not the answer.
 */
function canBeAnswer({ completion }: GraphNode): boolean {
  return !completion.auxiliary && (completion.callKind === 'main' || completion.callKind === 'subagent');
}
