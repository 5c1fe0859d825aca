import type { AssistantMessage, ChatMessage } from '../../schema/index.ts';
import type { Completion } from '../../tokens/completion.ts';
import { joinedTurn, sameTurn } from '../../tokens/same-turn.ts';
import { callNamed } from './call-ids.ts';

/** A recorded completion, and what its ids are. */
export type RecordedTurn = {
  readonly completion: Completion;
  /** Prompt or response hold thinking of the policy's. */
  readonly thinks: boolean;
  /** Of the tokenizer and template that they are of. */
  readonly fingerprint: string | null;
};

/** A recorded completion in its place. */
export type Turn = RecordedTurn & {
  /** A request went on from it. */
  used: boolean;
  /** Where the conversation goes on behind it. */
  readonly after: Place;
};

/** A point in a conversation. Ways that lead on are messages by their JSON text, and the recorded turns. */
type Place = { readonly next: Map<string, Place>; readonly turns: Turn[] };

/** A turn of a request's history: the messages from `at` on, `count` of them, are what `turn` sampled. */
export type KnownTurn = {
  readonly turn: Turn;
  readonly at: number;
  readonly count: number;
  /** The known turn before it. */
  readonly before: KnownTurn | null;
};

export type History = {
  readonly thread: string;
  readonly messages: readonly ChatMessage[];
  readonly messageTexts: readonly string[];
  readonly toolsText: string;
};

/** The completion that a message's signatures name. */
export type TurnNames = (index: number) => string | undefined;

/** Why a request goes on from no turn: it has none; its turns are not recorded ones; they are, but under other tools. */
export type NoTurn = 'first' | 'rewritten' | 'tools';

export type Found = { readonly last: KnownTurn } | { readonly last: null; readonly because: NoTurn };

type Thread = { readonly byTools: Map<string, Place>; latestTools: string };

type Visit = { readonly place: Place; readonly at: number; readonly known: KnownTurn | null };

/** A reply comes back as one message, or as one for its text, thinking and each of a few calls. */
const MAX_MESSAGES_PER_TURN = 4;

/** Replies that are all alike, sampled by the hundred on purpose, can be told apart in that many ways and more. */
const MAX_VISITS = 10_000;

/**
 * The conversations of one session, as far as they were recorded. A turn is only found in the place where it was sampled: behind
 * the same messages, in the same thread, with the same tools. Costs a look-up for each message of a request.
 */
export class Conversations {
  private readonly threads = new Map<string, Thread>();
  /** What a message was found to be: arguments that are written anew are not parsed again at every turn. */
  private readonly known = new WeakMap<ChatMessage, Turn>();

  /**
   * The deepest recorded turn that the history goes on from. Of equal ones, sampled in one place, that which ids or signatures
   * name, else one that was used, else the latest. Messages that come again should be the same objects.
   */
  find(history: History, names: TurnNames): Found {
    const { messages, toolsText } = history;
    const thread = this.threads.get(history.thread);
    const own = thread?.byTools.get(toolsText);
    const last = own === undefined ? null : this.deepest(own, history, names);
    if (last !== null) return { last };
    if (!messages.some(({ role }) => role === 'assistant')) return { last: null, because: 'first' };
    if (thread === undefined || thread.latestTools === toolsText) return { last: null, because: 'rewritten' };
    const other = thread.byTools.get(thread.latestTools);
    const moved = other !== undefined && this.deepest(other, history, names) !== null;
    return { last: null, because: moved ? 'tools' : 'rewritten' };
  }

  /** `last`: what was found for the completion's request. */
  add(recorded: RecordedTurn, last: KnownTurn | null): void {
    const { thread: name, request } = recorded.completion;
    const thread = this.threads.get(name) ?? { byTools: new Map<string, Place>(), latestTools: '' };
    this.threads.set(name, thread);
    thread.latestTools = request.toolsText;
    let place = last?.turn.after ?? nextOf(thread.byTools, request.toolsText);
    for (let at = endOf(last); at < request.messageTexts.length; at++) {
      place = nextOf(place.next, request.messageTexts[at] as string);
    }
    place.turns.push({ ...recorded, used: false, after: newPlace() });
  }

  private deepest(root: Place, history: History, names: TurnNames): KnownTurn | null {
    const { messages, messageTexts } = history;
    let best: KnownTurn | null = null;
    const open: Visit[] = [{ place: root, at: 0, known: null }];
    for (let visits = 0; visits < MAX_VISITS; visits++) {
      const visit = open.pop();
      if (visit === undefined) break;
      if (endOf(visit.known) > endOf(best)) best = visit.known;
      let { place, at } = visit;
      for (; at < messages.length; at++) {
        const turns = place.turns.length === 0 ? [] : this.turnsAt(place, messages, at, names);
        const next = place.next.get(messageTexts[at] as string);
        if (turns.length > 0) {
          if (next !== undefined) open.push({ place: next, at: at + 1, known: visit.known });
          for (const { turn, count } of turns.reverse()) {
            open.push({ place: turn.after, at: at + count, known: { turn, at, count, before: visit.known } });
          }
          break;
        }
        if (next === undefined) break;
        place = next;
      }
    }
    return best;
  }

  /** The turns that the messages from `at` on may be, the likeliest first. */
  private turnsAt(
    { turns }: Place,
    messages: readonly ChatMessage[],
    at: number,
    names: TurnNames,
  ): { turn: Turn; count: number }[] {
    const found: { turn: Turn; count: number; named: boolean }[] = [];
    const run: AssistantMessage[] = [];
    const named = new Set<string>();
    for (let count = 1; count <= MAX_MESSAGES_PER_TURN; count++) {
      const message = messages[at + count - 1];
      if (message?.role !== 'assistant') break;
      run.push(message);
      addNames(named, message, names(at + count - 1));
      const echo = joinedTurn(run);
      for (const turn of turns) {
        if (this.same(echo, turn)) found.push({ turn, count, named: named.has(turn.completion.completionId) });
      }
    }
    const sure = found.filter((entry) => entry.named);
    // Stable: of equal ones the later stand first.
    return (sure.length > 0 ? sure : found).reverse().sort((a, b) => Number(b.turn.used) - Number(a.turn.used));
  }

  private same(echo: AssistantMessage, turn: Turn): boolean {
    if (this.known.get(echo) === turn) return true;
    const { message, request } = turn.completion;
    if (!sameTurn(echo, message, request.tools)) return false;
    this.known.set(echo, turn);
    return true;
  }
}

/** Behind the last message of a turn; 0 without one. */
export function endOf(known: KnownTurn | null): number {
  return known === null ? 0 : known.at + known.count;
}

function addNames(named: Set<string>, message: AssistantMessage, reference: string | undefined): void {
  if (reference !== undefined) named.add(reference);
  for (const { id } of message.tool_calls ?? []) {
    const call = callNamed(id);
    if (call !== null) named.add(call.completionId);
  }
}

function newPlace(): Place {
  return { next: new Map(), turns: [] };
}

function nextOf(places: Map<string, Place>, text: string): Place {
  const known = places.get(text);
  if (known !== undefined) return known;
  const place = newPlace();
  places.set(text, place);
  return place;
}
