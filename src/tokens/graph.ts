import { FloeError } from '../core/errors.ts';
import type { DriftClass, LinkKind } from '../schema/index.ts';
import type { Completion } from './completion.ts';
import { classifyDrift, likenessOf, type SameText } from './drift.ts';
import { type Branch, extend, newTree, walk } from './prefix-tree.ts';
import { sameIds, sharedLength } from './sequence.ts';

/**
 * One completion in its place in the session.
 *
 * - `exact`: the prompt starts with the parent's prompt and response, id by id.
 * - `rerendered`: the prompt starts with the parent's whole prompt and goes on, but not with the response as sampled.
 * - `fork`: no parent, but the prompt shares with an earlier completion (`forkOf`) at least one whole message beyond
 *   the leading system messages, or one of the two prompts is a prefix of the other: the same prompt sampled again,
 *   an edited history, other tools, another thread on the same history.
 * - `root`: anything else. Sharing only system messages is no kinship: a sub-agent or a compacted history starts anew.
 */
export type GraphNode = {
  readonly completion: Completion;
  readonly link: LinkKind;
  /** Why a `rerendered` turn is not as it was sampled; null for every other link. */
  readonly drift: DriftClass | null;
  /** The completion that this one continues; only with `exact` and `rerendered`. */
  readonly parent: GraphNode | null;
  /** The earlier completion with which a `fork` shares the longest prefix. */
  readonly forkOf: GraphNode | null;
  /** How many leading ids of the prompt are those of prompt + response of `parent` or `forkOf`. 0 for a root. */
  readonly sharedLength: number;
  /**
   * The position in the prompt behind the parent's assistant turn. With `exact` the end of the sampled response; with
   * `rerendered` just behind the first turn-close id after the parent's prompt, null when there is none.
   */
  readonly suffixStart: number | null;
  /** Those that continue this one, by arrival. */
  readonly children: readonly GraphNode[];
};

export type TokenGraph = {
  /** By arrival; a parent comes before its children. */
  readonly nodes: readonly GraphNode[];
  /** Per model, the ids at which the engine reported that a turn was closed. */
  readonly closeIds: ReadonlyMap<string, ReadonlySet<number>>;
};

export type GraphOptions = {
  /** Ids that close an assistant turn by the template, for every model, beside those that the engine's stop reasons tell. */
  readonly closeIds?: readonly number[];
  /** Proves that a turn was only cut into other tokens; without it no drift is `retokenized`. */
  readonly sameText?: SameText;
};

/** A node while it is placed. `line` numbers the combinations of model, thread and tools. */
type Draft = GraphNode & { readonly children: Draft[]; readonly line: number; branch: Branch<Draft> };

/**
 * Places every completion of one attempt under the one that it continues. The result depends on the requests and their
 * arrival index alone, not on the order of `completions` or on which reply came first; two completions with one prompt
 * are siblings. A parent has the same thread, tools and model, arrived earlier and has a strictly shorter prompt; the
 * longest such prompt wins. Among siblings: the one whose response was kept as sampled, then the one whose message the request
 * repeats, then the longest shared prefix, then one not abandoned, then the latest.
 *
 * Costs about one memory comparison of every prompt. Throws `internal` when completions of several attempts are mixed
 * or an id comes twice.
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
    const node = place(completion, line, tree, latest.get(line), { closeIds: known, sameText });
    latest.set(line, node);
    nodes.push(node);
  }
  return { nodes, closeIds };
}

function refuseMixtures(completions: readonly Completion[]): void {
  const seen = new Set<string>();
  const first = completions[0];
  for (const { completionId, sessionId, attempt } of completions) {
    if (seen.has(completionId)) throw new FloeError('internal', `completion ${completionId} comes twice`);
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
    // Never from a stop string: what it ends with is any token.
    if (stop?.kind === 'token') ids.add(stop.id);
  }
  return byModel;
}

/** Numbers lines without hashing the tools' text, which can be long; a session has few different ones. */
class Lines {
  private readonly known: { model: string; thread: string; toolsText: string }[] = [];

  numberOf(completion: Completion): number {
    const { model, thread } = completion;
    const { toolsText } = completion.request;
    const found = this.known.findIndex((l) => l.thread === thread && l.model === model && l.toolsText === toolsText);
    return found >= 0 ? found : this.known.push({ model, thread, toolsText }) - 1;
  }
}

/** What is known of the model's turns. */
type Turns = { readonly closeIds: ReadonlySet<number>; readonly sameText: SameText };

function place(
  completion: Completion,
  line: number,
  tree: Branch<Draft>,
  guess: Draft | undefined,
  turns: Turns,
): Draft {
  const ids = completion.promptIds;
  // Where the latest completion of the line is continued, every better parent lies below its prompt's branch.
  const start = guess !== undefined && continues(ids, guess) ? guess.branch : tree;
  const end = walk(start, ids, start.depth);
  const parent = findParent(completion, line, end);
  const forkOf = parent === null ? findFork(completion, end, turns.closeIds) : null;
  const placed = linkOf(completion, parent, forkOf === null ? 0 : end.depth, turns.closeIds);
  const node: Draft = {
    completion,
    line,
    drift: parent === null || parent.exact ? null : driftOf(completion, parent.node, placed.suffixStart, turns),
    parent: parent?.node ?? null,
    forkOf,
    ...placed,
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

/** The longest prompt that is a proper prefix; climbs from where the prompt left the tree. */
function findParent(completion: Completion, line: number, end: Branch<Draft>): Match | null {
  const ids = completion.promptIds;
  for (let at: Branch<Draft> | null = end; at !== null && at.depth > 0; at = at.parent) {
    if (at.depth === ids.length) continue;
    let best: Match | null = null;
    for (const node of at.prompts) {
      // A reply without a token, from an aborted call, cannot have been continued.
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

/** How well the request holds the parent's reply where it belongs. */
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
  // Equal messages may still be rendered apart from the first id on, when tools differ: then no turn is shared.
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

function driftOf(completion: Completion, parent: GraphNode, suffixStart: number | null, turns: Turns): DriftClass {
  const { promptIds, responseIds, message, request } = parent.completion;
  const asked = completion.request.messages.slice(request.messages.length);
  return classifyDrift(message, asked, () => {
    // Without a turn close it is not known how much of the prompt is the turn.
    if (suffixStart === null) return null;
    const last = responseIds.at(-1);
    const closed = last !== undefined && turns.closeIds.has(last);
    const sampled = closed ? responseIds.subarray(0, -1) : responseIds;
    const rendered = completion.promptIds.subarray(promptIds.length, suffixStart - 1);
    const same = sampled.length === rendered.length && sameIds(sampled, 0, rendered, 0, sampled.length);
    return same || turns.sameText(sampled, rendered);
  });
}
