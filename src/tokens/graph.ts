import { FloeError } from '../core/errors.ts';
import type { DriftClass, LinkKind } from '../schema/index.ts';
import type { Completion } from './completion.ts';
import { classifyDrift, likenessOf, type SameText } from './drift.ts';
import { type Branch, extend, newTree, walk } from './prefix-tree.ts';
import { sameIds, sharedLength } from './sequence.ts';

/**
 * One completion with its `link` to the earlier completions of its session:
 *
 * - `exact`: the prompt starts with the parent's prompt and response, id by id.
 * - `rerendered`: the prompt starts with the parent's whole prompt, but the ids after it differ from the response that was sampled.
 * - `fork`: the completion has no parent, but its prompt shares with an earlier completion (`forkOf`) at least one whole message beyond
 *   the leading system messages, or one of the two prompts is a prefix of the other. Causes are the same prompt sampled twice, an edited
 *   history, other tools, or another thread on the same history.
 * - `root`: anything else. Sharing only system messages does not count: a sub-agent or a compacted history is a new root.
 */
export type GraphNode = {
  readonly completion: Completion;
  readonly link: LinkKind;
  /** Why the parent's assistant turn differs in this prompt from what was sampled; `null` unless `link` is `rerendered`. */
  readonly drift: DriftClass | null;
  /** The completion that this one continues; `null` unless `link` is `exact` or `rerendered`. */
  readonly parent: GraphNode | null;
  /** The earlier completion with which this one shares the longest prefix; `null` unless `link` is `fork`. */
  readonly forkOf: GraphNode | null;
  /** The number of leading prompt ids that equal those of the prompt followed by the response of `parent` or `forkOf`; 0 for a root. */
  readonly sharedLength: number;
  /**
   * The position in the prompt after the parent's assistant turn: for `exact` the end of the sampled response, for `rerendered` the
   * position after the first turn-close id that follows the parent's prompt. `null` when there is no such id or no parent.
   */
  readonly suffixStart: number | null;
  /** The completions that continue this one, ordered by arrival. */
  readonly children: readonly GraphNode[];
};

export type TokenGraph = {
  /** All completions, ordered by arrival; a parent precedes its children. */
  readonly nodes: readonly GraphNode[];
  /** For each model, the ids that close an assistant turn. */
  readonly closeIds: ReadonlyMap<string, ReadonlySet<number>>;
};

export type GraphOptions = {
  /** Ids with which the chat template of every model closes an assistant turn. Ids learned from stop reasons are added to them. */
  readonly closeIds?: readonly number[];
  /** Reports whether a turn was only tokenized differently. Without this function no drift is classed as `retokenized`. */
  readonly sameText?: SameText;
};

/**
 * A node under construction. `line` is the number of the completion's combination of model, thread and tools; only completions of one
 * combination continue each other. `branch` is the branch of the prefix tree at whose end the node's prompt ends.
 */
type Draft = GraphNode & { readonly children: Draft[]; readonly line: number; branch: Branch<Draft> };

/**
 * Links every completion of one attempt to the one that it continues. The result depends only on the requests and the order of their
 * arrival, not on the order of `completions` or of the replies. A parent has the same thread, tools and model, arrived earlier, and has at
 * least one response id; its prompt is a proper prefix of the child's prompt, and the longest such prompt wins. Two completions with the
 * same prompt are siblings, never parent and child. When several candidates have the same prompt, the parent is, in this order:
 *
 * 1. the one whose response follows in the child's prompt exactly as sampled (link `exact`);
 * 2. the one whose message the child's request returns best: with the ids of all its calls, then with the same meaning, then neither;
 * 3. the one whose prompt and response share the longest prefix with the child's prompt;
 * 4. one that is neither abandoned nor undelivered;
 * 5. the one that arrived last.
 *
 * Costs about one memory comparison of every prompt. Throws `internal` when completions of several attempts are mixed or an id occurs
 * twice.
 */
export function buildGraph(completions: readonly Completion[], options: GraphOptions = {}): TokenGraph {
  refuseMixtures(completions);
  const ordered = [...completions].sort(
    (a, b) => a.index - b.index || (a.completionId < b.completionId ? -1 : a.completionId > b.completionId ? 1 : 0),
  );
  const closeIds = learnCloseIds(ordered, options.closeIds ?? []);
  const sameText = options.sameText ?? (() => null);
  const trees = new Map<string, Branch<Draft>>();
  const lines = new Lines();
  const latest = new Map<number, Draft>();
  const nodes: Draft[] = [];
  for (const completion of ordered) {
    const line = lines.numberOf(completion);
    let tree = trees.get(completion.model);
    if (tree === undefined) {
      tree = newTree<Draft>();
      trees.set(completion.model, tree);
    }
    const known = closeIds.get(completion.model) ?? new Set();
    const node = addNode(completion, line, tree, latest.get(line), { closeIds: known, sameText });
    latest.set(line, node);
    nodes.push(node);
  }
  return { nodes, closeIds };
}

function refuseMixtures(completions: readonly Completion[]): void {
  const seen = new Set<string>();
  const first = completions[0];
  for (const { completionId, sessionId, attempt } of completions) {
    if (seen.has(completionId)) throw new FloeError('internal', `completion ${completionId} occurs twice`);
    if (sessionId !== first?.sessionId || attempt !== first.attempt) {
      throw new FloeError('internal', `completion ${completionId} belongs to another attempt than the rest`);
    }
    seen.add(completionId);
  }
}

function learnCloseIds(completions: readonly Completion[], ofTemplate: readonly number[]): Map<string, Set<number>> {
  const byModel = new Map<string, Set<number>>();
  for (const { model, stop } of completions) {
    if (stop?.kind !== 'token' && ofTemplate.length === 0) continue;
    let ids = byModel.get(model);
    if (ids === undefined) {
      ids = new Set(ofTemplate);
      byModel.set(model, ids);
    }
    // Only a stop token is collected as an end-of-turn id. A reply that ended at a stop string may end with any token.
    if (stop?.kind === 'token') ids.add(stop.id);
  }
  return byModel;
}

/**
 * Numbers the combinations of model, thread and tools. It searches a list instead of hashing the tools' text, which can be long; a session
 * has few combinations.
 */
class Lines {
  private readonly known: { model: string; thread: string; toolsText: string }[] = [];

  numberOf(completion: Completion): number {
    const { model, thread } = completion;
    const { toolsText } = completion.request;
    const found = this.known.findIndex((l) => l.thread === thread && l.model === model && l.toolsText === toolsText);
    return found >= 0 ? found : this.known.push({ model, thread, toolsText }) - 1;
  }
}

/**
 * What is needed to compare a sampled turn with its rendering: the ids that close a turn of the completion's model, and the comparison of
 * texts.
 */
type TurnFacts = { readonly closeIds: ReadonlySet<number>; readonly sameText: SameText };

function addNode(
  completion: Completion,
  line: number,
  tree: Branch<Draft>,
  latest: Draft | undefined,
  turns: TurnFacts,
): Draft {
  const ids = completion.promptIds;
  // When the prompt continues the latest completion with the same model, thread and tools, the search starts at the end of that
  // completion's prompt, because every parent with a longer prompt is below it.
  const start = latest !== undefined && continues(ids, latest) ? latest.branch : tree;
  const end = walk(start, ids, start.depth);
  const parent = findParent(completion, line, end);
  const forkOf = parent === null ? findFork(completion, end, turns.closeIds) : null;
  const link = linkOf(completion, parent, forkOf === null ? 0 : end.depth, turns.closeIds);
  const node: Draft = {
    completion,
    line,
    drift: parent === null || parent.exact ? null : driftOf(completion, parent.node, link.suffixStart, turns),
    parent: parent?.node ?? null,
    forkOf,
    ...link,
    children: [],
    branch: end,
  };
  node.branch = extend(end, ids, end.depth, node);
  node.branch.prompts.push(node);
  parent?.node.children.push(node);
  const response = completion.responseIds;
  const inner = walk(node.branch, response, 0);
  extend(inner, response, inner.depth - node.branch.depth, node);
  return node;
}

function continues(ids: Int32Array, earlier: Draft): boolean {
  const prompt = earlier.completion.promptIds;
  return prompt.length > 0 && prompt.length < ids.length && sameIds(prompt, 0, ids, 0, prompt.length);
}

type Match = { readonly node: Draft; readonly exact: boolean; readonly shared: number };

/**
 * Finds the completion with the longest prompt that is a proper prefix of this completion's prompt; `null` when there is none. Climbs
 * towards the root from `end`, the branch at which the prompt left the tree.
 */
function findParent(completion: Completion, line: number, end: Branch<Draft>): Match | null {
  const ids = completion.promptIds;
  for (let at: Branch<Draft> | null = end; at !== null && at.depth > 0; at = at.parent) {
    if (at.depth === ids.length) continue;
    let best: Match | null = null;
    for (const node of at.prompts) {
      // A reply without a token, as an aborted call leaves it, cannot have been continued.
      if (node.line !== line || node.completion.responseIds.length === 0) continue;
      const response = node.completion.responseIds;
      const kept = sharedLength(response, 0, response.length, ids, at.depth, ids.length);
      const match = { node, exact: kept === response.length, shared: at.depth + kept };
      if (best === null || isBetter(match, best, completion)) best = match;
    }
    if (best !== null) return best;
  }
  return null;
}

function isBetter(a: Match, b: Match, child: Completion): boolean {
  if (a.exact !== b.exact) return a.exact;
  const [aLikeness, bLikeness] = [likeness(child, a.node.completion), likeness(child, b.node.completion)];
  if (aLikeness !== bLikeness) return aLikeness > bLikeness;
  if (a.shared !== b.shared) return a.shared > b.shared;
  const aUsed = !a.node.completion.abandoned && !a.node.completion.undelivered;
  const bUsed = !b.node.completion.abandoned && !b.node.completion.undelivered;
  if (aUsed !== bUsed) return aUsed;
  return a.node.completion.index > b.node.completion.index;
}

/** Rates how well the child's request returns the parent's reply at its position; see {@link likenessOf}. */
function likeness(child: Completion, parent: Completion): number {
  return likenessOf(parent.message, child.request.messages.slice(parent.request.messages.length));
}

function findFork(completion: Completion, end: Branch<Draft>, closeIds: ReadonlySet<number>): Draft | null {
  const base = end.first;
  if (base === null || end.depth === 0) return null;
  const ids = completion.promptIds;
  if (end.depth === ids.length || end.depth >= base.completion.promptIds.length) return base;
  const { messages, messageTexts } = completion.request;
  const others = base.completion.request.messageTexts;
  const system = messages.findIndex((message) => message.role !== 'system');
  if (system < 0) return null;
  for (let i = 0; i <= system; i++) if (messageTexts[i] !== others[i]) return null;
  // Equal messages do not suffice: with other tools they may be rendered differently from the first id on. If close ids are known, the
  // shared ids must contain one, which proves a whole shared message.
  return closeIds.size === 0 || firstClose(ids, 0, end.depth, closeIds) !== null ? base : null;
}

function linkOf(
  completion: Completion,
  parent: Match | null,
  forkShared: number,
  closeIds: ReadonlySet<number>,
): Pick<GraphNode, 'link' | 'sharedLength' | 'suffixStart'> {
  if (parent === null) return { link: forkShared > 0 ? 'fork' : 'root', sharedLength: forkShared, suffixStart: null };
  if (parent.exact) return { link: 'exact', sharedLength: parent.shared, suffixStart: parent.shared };
  const ids = completion.promptIds;
  const close = firstClose(ids, parent.node.completion.promptIds.length, ids.length, closeIds);
  return { link: 'rerendered', sharedLength: parent.shared, suffixStart: close === null ? null : close + 1 };
}

function firstClose(ids: Int32Array, from: number, to: number, closeIds: ReadonlySet<number>): number | null {
  let first = to;
  for (const id of closeIds) {
    const found = ids.indexOf(id, from);
    if (found >= 0 && found < first) first = found;
  }
  return first < to ? first : null;
}

function driftOf(completion: Completion, parent: GraphNode, suffixStart: number | null, turns: TurnFacts): DriftClass {
  const { promptIds, responseIds, message, request } = parent.completion;
  const returned = completion.request.messages.slice(request.messages.length);
  return classifyDrift(message, returned, () => {
    // Without a turn-close id, the end of the turn in the prompt is unknown, so the texts cannot be compared.
    if (suffixStart === null) return null;
    const last = responseIds.at(-1);
    const closed = last !== undefined && turns.closeIds.has(last);
    const sampled = closed ? responseIds.subarray(0, -1) : responseIds;
    const rendered = completion.promptIds.subarray(promptIds.length, suffixStart - 1);
    const same = sampled.length === rendered.length && sameIds(sampled, 0, rendered, 0, sampled.length);
    return same || turns.sameText(sampled, rendered);
  });
}
