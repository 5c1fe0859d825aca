import type { ChatMessage } from '@floe-rl/core/schema';
import type { Completion } from '../../src/tokens/completion.ts';
import { CALL_CLOSE, CLOSE, type CompletionInput, makeCompletion } from './session.ts';

/**
 * The id that begins the turn of each role in the invented chat template. A turn consists of this id, the content and CLOSE. A prompt ends
 * with the assistant's id.
 */
const MARKS = { system: 10, user: 11, assistant: 12, tool: 13 } as const;

/** The messages of a conversation, and the ids to which the chat template renders them. */
export type History = { readonly ids: readonly number[]; readonly messages: readonly ChatMessage[] };

/**
 * Creates the model calls of a session in an invented chat template. The ids of all contents differ from each other, so that no ids match
 * by chance.
 */
export class Transcript {
  readonly completions: Completion[] = [];
  private nextId = 1000;

  /** Returns `count` ids that occur nowhere else in the session. */
  fresh(count: number): number[] {
    return Array.from({ length: count }, () => this.nextId++);
  }

  turn(history: History, role: 'system' | 'user' | 'tool', ids = this.fresh(3)): History {
    const content = ids.join(' ');
    const message: ChatMessage = role === 'tool' ? { role, tool_call_id: 'call', content } : { role, content };
    return { ids: [...history.ids, MARKS[role], ...ids, CLOSE], messages: [...history.messages, message] };
  }

  start(system = this.fresh(2)): History {
    return this.turn(this.turn({ ids: [], messages: [] }, 'system', system), 'user');
  }

  /** Adds a model call whose prompt is `history`. By default, the reply has four new ids and an end-of-turn id. */
  call(history: History, input: Partial<CompletionInput> = {}): Completion {
    const index = this.completions.length;
    const completion = makeCompletion({
      prompt: [...history.ids, MARKS.assistant],
      response: [...this.fresh(4), CLOSE],
      messages: history.messages,
      index,
      ...input,
    });
    this.completions.push(completion);
    return completion;
  }

  /**
   * Returns the history for the next call: `history`, the reply of `completion`, and a new turn of `role`. The reply is rendered as it was
   * sampled or, when `ids` is given, as these ids and an end-of-turn id. `given` are the messages that the harness returns for the reply.
   */
  after(
    history: History,
    completion: Completion,
    ids?: readonly number[],
    role: 'user' | 'tool' = 'tool',
    given: readonly ChatMessage[] = [completion.message],
  ): History {
    const sampled = [...completion.responseIds];
    const last = sampled.at(-1);
    const closed = last === CLOSE || last === CALL_CLOSE ? sampled : [...sampled, CLOSE];
    const turn = ids === undefined ? closed : [...ids, CLOSE];
    return this.turn(
      { ids: [...history.ids, MARKS.assistant, ...turn], messages: [...history.messages, ...given] },
      role,
    );
  }
}
