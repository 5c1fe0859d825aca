import { FloeError } from '@floe-rl/core';
import type { DriftClass, LinkKind } from '@floe-rl/core/schema';
import type { Completion } from './completion.ts';
import { classifyDrift, likenessOf, type SameText } from './drift.ts';
import { type Branch, branchAt, extend, newTree, walk } from './prefix-tree.ts';
import { sameIds, sharedLength } from './sequence.ts';

/**
 * One completion with its `link` to the earlier completions of its session:
 *
 * - `exact`: the prompt starts with the parent's prompt and response, id by id.
 * - `rerendered`: the prompt starts with all messages of the parent's prompt, followed by an assistant turn. The ids of this turn differ from
 * the ids that the parent's prompt and response have there.
 * - `fork`: the completion has no parent, but its prompt shares at least one whole message beyond the leading system messages with an earlier
 * completion (`forkOf`). It is also a fork when one of the two prompts is a prefix of the other. Causes are the same prompt sampled twice, an
 * edited history, other tools, or another agent thread with the same history.
 * - `root`: all other completions. A completion that shares only system messages with earlier ones is a root. Examples are the first
 * completion of a sub-agent and the first completion after a compaction.
 */
export type GraphNode = {
  readonly completion: Completion;
  readonly link: LinkKind;
  /** Why the parent's assistant turn differs in this prompt from the sampled response; `null` unless `link` is `rerendered`. */
  readonly drift: DriftClass | null;
  /** The completion that this completion continues; `null` unless `link` is `exact` or `rerendered`. */
  readonly parent: GraphNode | null;
  /** The earlier completion that shares the longest prefix with this completion; `null` unless `link` is `fork`. */
  readonly forkOf: GraphNode | null;
  /**
   * The number of leading prompt ids that this completion shares with another completion, `parent` or `forkOf`. The shared ids are the first
   * of the other completion's prompt ids followed by its response ids. 0 for a root.
   */
  readonly sharedLength: number;
  /**
   * The position in the prompt after the parent's assistant turn. For `exact`, it is the end of the sampled response. For `rerendered`, it
   * is the position after the first end-of-turn id that follows the messages of the parent's prompt. `null` when there is no end-of-turn id or no parent.
   */
  readonly suffixStart: number | null;
  /** The completions that continue this completion, ordered by the arrival of their requests. */
  readonly children: readonly GraphNode[];
};

export type TokenGraph = {
  /** All completions, ordered by the arrival of their requests; a parent precedes its children. */
  readonly nodes: readonly GraphNode[];
  /** For each model, the end-of-turn ids, which close an assistant turn. */
  readonly closeIds: ReadonlyMap<string, ReadonlySet<number>>;
};

export type GraphOptions = {
  /** End-of-turn ids of the chat template, for every model. The stop tokens of the completions are added to them. */
  readonly closeIds?: readonly number[];
  /** End-of-turn ids of models with another chat template, in place of `closeIds`. */
  readonly closeIdsByModel?: ReadonlyMap<string, readonly number[]>;
  /**
   * Reports whether two id sequences are only different tokenizations of one text. Without this function, no drift is classified as
   * `retokenized`.
   */
  readonly sameText?: SameText;
};

/**
 * A graph node under construction. Completions with the same model, thread and tools have the same number `line`; only they can continue
 * each other. `branch` is a branch of the prefix tree: the ids from the root to the end of the branch are the completion's prompt.
 */
type Draft = GraphNode & { readonly children: Draft[]; readonly line: number; branch: Branch<Draft> };

/**
 * Links every completion of one attempt to the completion that it continues, its parent. The result depends only on the requests and the order
 * of their arrival, not on the order of `completions` or of the replies.
 *
 * A parent has the same thread, tools and model, arrived earlier, and has at least one response id. Its prompt is a proper prefix of the
 * child's prompt, and the longest such prompt wins. The last ids of the parent's prompt may differ from the child's prompt if they only begin
 * the reply and the child's request contains an assistant turn there. The reason is that the first text of the turn may be tokenized together
 * with these ids, or that a template omits them when it renders the turn. Two completions with the same prompt are siblings, never parent and
 * child.
 *
 * When several candidates have the same prompt, these rules choose the parent. A rule decides only between candidates that are equal by the
 * rules before it. The parent is the candidate
 *
 * 1. whose response follows in the child's prompt exactly as sampled (link `exact`);
 * 2. whose reply the child's request contains with the ids of all its tool calls, or else with the same meaning;
 * 3. whose prompt and response share the longest prefix with the child's prompt;
 * 4. that is neither abandoned nor undelivered;
 * 5. that arrived last.
 *
 * Takes about one memory comparison of every prompt. Throws `internal` when completions of several attempts are mixed or an id occurs twice.
 */
export function buildGraph(completions: readonly Completion[], options: GraphOptions = {}): TokenGraph {
  refuseMixtures(completions);
  const ordered = [...completions].sort(
    (a, b) => a.index - b.index || (a.completionId < b.completionId ? -1 : a.completionId > b.completionId ? 1 : 0),
  );
  const { closeIds: common = [], closeIdsByModel } = options;
  const closeIds = learnCloseIds(ordered, (model) => closeIdsByModel?.get(model) ?? common);
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

function learnCloseIds(
  completions: readonly Completion[],
  templateOf: (model: string) => readonly number[],
): Map<string, Set<number>> {
  const byModel = new Map<string, Set<number>>();
  for (const { model, stop } of completions) {
    const ofTemplate = templateOf(model);
    if (stop?.kind !== 'token' && ofTemplate.length === 0) continue;
    let ids = byModel.get(model);
    if (ids === undefined) {
      ids = new Set(ofTemplate);
      byModel.set(model, ids);
    }
    // Only a stop token is collected as an end-of-turn id, because a reply that ended at a stop string may end with any token.
    if (stop?.kind === 'token') ids.add(stop.id);
  }
  return byModel;
}

/**
 * Numbers the combinations of model, thread and tools of a session's completions. It searches a list, because hashing the tools' long text
 * would take longer and a session has few combinations.
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
 * The input for comparing a sampled turn with its rendering: the end-of-turn ids of the completion's model, and the function that compares
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
  // completion's prompt. Every possible parent with a longer prompt is below that position in the tree.
  const start = latest !== undefined && continues(ids, latest) ? latest.branch : tree;
  const end = walk(start, ids, start.depth);
  const parent = findParent(completion, line, end);
  const forkOf = parent === null ? findFork(completion, end, turns.closeIds) : null;
  const link = linkOf(completion, parent, forkOf === null ? 0 : end.depth, turns.closeIds);
  const node: Draft = {
    completion,
    line,
    drift: parent === null || parent.exact ? null : driftOf(completion, parent, link.suffixStart, turns),
    parent: parent?.node ?? null,
    forkOf,
    ...link,
    children: [],
    branch: end,
  };
  node.branch = extend(end, ids, end.depth, node);
  node.branch.prompts.push(node);
  const messagesEnd = endOfMessages(ids, turns.closeIds);
  if (messagesEnd !== null) branchAt(node.branch, messagesEnd).messages.push(node);
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
 * Finds the parent of a completion: the one with the longest prompt that is a proper prefix of this completion's prompt; `null` when there
 * is none. The search goes from `end`, the last branch of the tree that matches the prompt, towards the root.
 */
function findParent(completion: Completion, line: number, end: Branch<Draft>): Match | null {
  const ids = completion.promptIds;
  for (let at: Branch<Draft> | null = end; at !== null && at.depth > 0; at = at.parent) {
    if (at.depth === ids.length) continue;
    let best: Match | null = null;
    for (const node of [...at.prompts, ...at.messages.filter((one) => containsTurnAfter(completion, one))]) {
      // A reply without tokens cannot have been continued. An aborted call leaves such a reply.
      if (node.line !== line || node.completion.responseIds.length === 0) continue;
      const match = matchOf(node, ids, at.depth);
      if (best === null || isBetter(match, best, completion)) best = match;
    }
    if (best !== null) return best;
  }
  return null;
}

/** Compares the prompt `ids` with the prompt and response of `node`. The first `known` ids are known to be equal. */
function matchOf(node: Draft, ids: Int32Array, known: number): Match {
  const { promptIds: prompt, responseIds: response } = node.completion;
  const inPrompt = known + sharedLength(prompt, known, prompt.length, ids, known, ids.length);
  if (inPrompt < prompt.length) return { node, exact: false, shared: inPrompt };
  const kept = sharedLength(response, 0, response.length, ids, inPrompt, ids.length);
  return { node, exact: kept === response.length, shared: inPrompt + kept };
}

/** Whether the request of `child` contains an assistant turn after the messages of `parent`. */
function containsTurnAfter(child: Completion, { completion: parent }: Draft): boolean {
  return child.request.messages[parent.request.messages.length]?.role === 'assistant';
}

/**
 * Largest number of ids after the last message of a prompt. These ids begin the reply, for example with the role `assistant` and a tag that
 * opens the reasoning.
 */
const MAX_REPLY_START_IDS = 64;

/** Returns the position in a prompt after the last end-of-turn id, where its last message ends; `null` when there is none near the end. */
function endOfMessages(ids: Int32Array, closeIds: ReadonlySet<number>): number | null {
  for (let at = ids.length - 1; at >= Math.max(0, ids.length - MAX_REPLY_START_IDS); at--) {
    if (closeIds.has(ids[at] as number)) return at + 1;
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

/** Rates how well the child's request contains the parent's reply at the reply's position; see {@link likenessOf}. */
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
  // Equal messages do not make the completion a fork: with other tools, a chat template may render equal messages with different ids. If
  // end-of-turn ids are known, the shared ids must contain one, which proves that the prompts share a whole message.
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
  const close = firstClose(ids, turnStartOf(parent), ids.length, closeIds);
  return { link: 'rerendered', sharedLength: parent.shared, suffixStart: close === null ? null : close + 1 };
}

/**
 * Returns the position where the comparison of the parent's assistant turn with the child's prompt begins. It is the end of the parent's
 * prompt, or the position of the first id of the parent's prompt that differs.
 */
function turnStartOf({ shared, node }: Match): number {
  return Math.min(shared, node.completion.promptIds.length);
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  if (a.length === 0) return b;
  const both = new Int32Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

function firstClose(ids: Int32Array, from: number, to: number, closeIds: ReadonlySet<number>): number | null {
  let first = to;
  for (const id of closeIds) {
    const found = ids.indexOf(id, from);
    if (found >= 0 && found < first) first = found;
  }
  return first < to ? first : null;
}

function driftOf(completion: Completion, parent: Match, suffixStart: number | null, turns: TurnFacts): DriftClass {
  const { promptIds, responseIds, message, request } = parent.node.completion;
  const returned = completion.request.messages.slice(request.messages.length);
  const proof = (): boolean | null => {
    // Without an end-of-turn id, the end of the parent's turn in the prompt is unknown, so it cannot be compared with the sampled turn.
    if (suffixStart === null) return null;
    const last = responseIds.at(-1);
    const closed = last !== undefined && turns.closeIds.has(last);
    const turnStart = turnStartOf(parent);
    const sampled = joined(promptIds.subarray(turnStart), closed ? responseIds.subarray(0, -1) : responseIds);
    const rendered = completion.promptIds.subarray(turnStart, suffixStart - 1);
    const same = sampled.length === rendered.length && sameIds(sampled, 0, rendered, 0, sampled.length);
    return same || turns.sameText(sampled, rendered);
  };
  return classifyDrift(message, returned, proof, isCut(parent, suffixStart));
}

/**
 * Whether the prompt contains only the beginning of the parent's reply. Either the ids of the turn are the first ids of the reply, or the
 * reply ended at a stop string, which is not part of its message.
 */
function isCut({ node, shared }: Match, suffixStart: number | null): boolean {
  const { promptIds, stop, message } = node.completion;
  if (shared > promptIds.length && suffixStart !== null && shared === suffixStart - 1) return true;
  return stop?.kind === 'string' && (message.tool_calls ?? []).length === 0;
}
