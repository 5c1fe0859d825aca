import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import type { Completion } from '../../tokens/completion.ts';
import { joinedTurn, sameTurn } from '../../tokens/same-turn.ts';
import { parseCallId } from './call-ids.ts';

/** A recorded completion with the facts that decide whether the prompt of a later request may continue its token ids. */
export type RecordedTurn = {
  readonly completion: Completion;
  /** Whether the completion's prompt or response contains thinking (reasoning text) of the policy. */
  readonly hasThinking: boolean;
  /** Identifies the tokenizer and chat template that produced the token ids; `null` when the engine reports no fingerprint. */
  readonly fingerprint: string | null;
};

/** A recorded turn as {@link PrefixIndex} stores it. */
export type IndexedTurn = RecordedTurn & {
  /** Whether the history of a later request contained this turn. */
  used: boolean;
  /** The node for the position after this turn. A search for the messages that follow the turn starts at this node. */
  readonly after: PrefixNode;
};

/**
 * A node of the {@link PrefixIndex}, which is a position in a conversation. `next` maps the JSON text of each following message to the
 * position after that message; `null` when no message follows. `turns` are the replies that were sampled at this position.
 */
type PrefixNode = { next: Map<string, PrefixNode> | null; readonly turns: IndexedTurn[] };

/** A recorded turn that was found in a request's history: the `count` messages from index `at` have the content of `turn`. */
export type MatchedTurn = {
  readonly turn: IndexedTurn;
  readonly at: number;
  readonly count: number;
  /** The previous recorded turn that was found in the same history; `null` for the first one. */
  readonly previous: MatchedTurn | null;
};

export type History = {
  readonly thread: string;
  readonly messages: readonly ChatMessage[];
  readonly messageTexts: readonly string[];
  readonly toolsText: string;
};

/**
 * Returns the completion id in the thinking signature of the message at `index`; `undefined` when the message has no signature that floe
 * made.
 */
export type ClaimedCompletionId = (index: number) => string | undefined;

/**
 * Why a request continues no recorded turn. `first`: its history has no assistant turn. `rewritten`: its assistant turns differ from the
 * recorded turns. `tools`: its assistant turns were recorded, but with other tools.
 */
export type NoMatchReason = 'first' | 'rewritten' | 'tools';

/** The last recorded turn that a request's history continues, or the reason why the history continues none. */
export type PrefixMatch = { readonly last: MatchedTurn } | { readonly last: null; readonly because: NoMatchReason };

type Thread = { readonly byTools: Map<string, PrefixNode>; latestTools: string };

type Visit = { readonly node: PrefixNode; readonly at: number; readonly matched: MatchedTurn | null };

/**
 * Maximum number of consecutive assistant messages that are compared with one recorded reply. Dialects split a reply into separate messages
 * for its text, its thinking and a few tool calls.
 */
const MAX_MESSAGES_PER_TURN = 4;

/** Maximum number of nodes that one search visits, so that hundreds of identical replies cannot block the event loop. */
const MAX_VISITS = 10_000;

/**
 * Index of the recorded conversations of one session, as a prefix tree. It is searched by messages, because a request arrives as messages and
 * its token ids are not known yet. (The prefix tree of the token graph is searched by token ids.)
 *
 * A turn is found only at the position where it was sampled: after the same messages, in the same agent thread, with the same tools. A search
 * takes one lookup per message of a request.
 */
export class PrefixIndex {
  private readonly threads = new Map<string, Thread>();
  /**
   * Maps each message to the recorded turn that it was last found to equal. The arguments of its tool calls are then parsed once, and not for
   * every later request.
   */
  private readonly known = new WeakMap<ChatMessage, IndexedTurn>();

  /**
   * Finds the last recorded turn that the history continues. Several equal turns may have been recorded at one position. The first choice is a
   * turn whose completion id occurs in a tool-call id or signature of the history. The second choice is a turn that an earlier request
   * contained, and the last choice is the latest turn. The search is fast when repeated messages are the same objects in every request,
   * because comparisons are cached per object.
   */
  find(history: History, claimed: ClaimedCompletionId): PrefixMatch {
    const { messages, toolsText } = history;
    const thread = this.threads.get(history.thread);
    const root = thread?.byTools.get(toolsText);
    const last = root === undefined ? null : this.deepest(root, history, claimed);
    if (last !== null) return { last };
    if (!messages.some(({ role }) => role === 'assistant')) return { last: null, because: 'first' };
    if (thread === undefined || thread.latestTools === toolsText) return { last: null, because: 'rewritten' };
    const other = thread.byTools.get(thread.latestTools);
    const matchesOther = other !== undefined && this.deepest(other, history, claimed) !== null;
    return { last: null, because: matchesOther ? 'tools' : 'rewritten' };
  }

  /** Adds a recorded completion to the index. `last` is the turn that {@link find} returned for the completion's request. */
  add(recorded: RecordedTurn, last: MatchedTurn | null): void {
    const { thread: name, request } = recorded.completion;
    const thread = this.threads.get(name) ?? { byTools: new Map<string, PrefixNode>(), latestTools: '' };
    this.threads.set(name, thread);
    thread.latestTools = request.toolsText;
    let node = last?.turn.after ?? childOf(thread.byTools, request.toolsText);
    for (let at = endOf(last); at < request.messageTexts.length; at++) {
      node.next ??= new Map();
      node = childOf(node.next, request.messageTexts[at] as string);
    }
    node.turns.push({ ...recorded, used: false, after: newNode() });
  }

  private deepest(root: PrefixNode, history: History, claimed: ClaimedCompletionId): MatchedTurn | null {
    const { messages, messageTexts } = history;
    let best: MatchedTurn | null = null;
    const open: Visit[] = [{ node: root, at: 0, matched: null }];
    for (let visits = 0; visits < MAX_VISITS; visits++) {
      const visit = open.pop();
      if (visit === undefined) break;
      if (endOf(visit.matched) > endOf(best)) best = visit.matched;
      let { node, at } = visit;
      for (; at < messages.length; at++) {
        const turns = node.turns.length === 0 ? [] : this.turnsAt(node, messages, at, claimed);
        const next = node.next?.get(messageTexts[at] as string);
        if (turns.length > 0) {
          if (next !== undefined) open.push({ node: next, at: at + 1, matched: visit.matched });
          for (const { turn, count } of turns.reverse()) {
            open.push({ node: turn.after, at: at + count, matched: { turn, at, count, previous: visit.matched } });
          }
          break;
        }
        if (next === undefined) break;
        node = next;
      }
    }
    return best;
  }

  /** Returns the recorded turns at this node that equal the messages from index `at`, with the most probable turn first. */
  private turnsAt(
    { turns }: PrefixNode,
    messages: readonly ChatMessage[],
    at: number,
    claimed: ClaimedCompletionId,
  ): { turn: IndexedTurn; count: number }[] {
    const matches: { turn: IndexedTurn; count: number; isNamed: boolean }[] = [];
    const run: AssistantMessage[] = [];
    const named = new Set<string>();
    for (let count = 1; count <= MAX_MESSAGES_PER_TURN; count++) {
      const message = messages[at + count - 1];
      if (message?.role !== 'assistant') break;
      run.push(message);
      addNames(named, message, claimed(at + count - 1));
      const returned = joinedTurn(run);
      for (const turn of turns) {
        const { completion } = turn;
        const isTurn =
          this.known.get(returned) === turn || sameTurn(returned, completion.message, completion.request.tools);
        if (!isTurn) continue;
        this.known.set(returned, turn);
        matches.push({ turn, count, isNamed: named.has(completion.completionId) });
      }
    }
    const namedMatches = matches.filter((match) => match.isNamed);
    // The order is: turns that an earlier request contained, then the other turns, and the latest turn first in each group. The reversal
    // puts the latest turns first, and the sort is stable.
    return (namedMatches.length > 0 ? namedMatches : matches)
      .reverse()
      .sort((a, b) => Number(b.turn.used) - Number(a.turn.used));
  }
}

/** Returns the index of the message after a matched turn; 0 for `null`. */
export function endOf(matched: MatchedTurn | null): number {
  return matched === null ? 0 : matched.at + matched.count;
}

function addNames(named: Set<string>, message: AssistantMessage, claimed: string | undefined): void {
  if (claimed !== undefined) named.add(claimed);
  for (const { id } of message.tool_calls ?? []) {
    const call = parseCallId(id);
    if (call !== null) named.add(call.completionId);
  }
}

function newNode(): PrefixNode {
  return { next: null, turns: [] };
}

function childOf(children: Map<string, PrefixNode>, text: string): PrefixNode {
  const known = children.get(text);
  if (known !== undefined) return known;
  const node = newNode();
  children.set(text, node);
  return node;
}
