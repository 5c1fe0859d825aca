import type { ChatMessage } from '../../src/schema/index.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { CALL_CLOSE, CLOSE, type CompletionInput, makeCompletion } from './session.ts';

/** Role marks of the invented template: a turn is mark, content, CLOSE; a prompt ends with the assistant's mark. */
const MARKS = { system: 10, user: 11, assistant: 12, tool: 13 } as const;

/** A harness's messages, and the ids to which the template renders them. */
export type History = { readonly ids: readonly number[]; readonly messages: readonly ChatMessage[] };

/** Writes sessions in an invented template with content ids that never repeat, so that no ids match by chance. */
export class Transcript {
  readonly completions: Completion[] = [];
  private nextId = 1000;

  /** Returns `count` ids that occur nowhere else. */
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

  /** Adds a model call on `history`. By default the reply has four new ids and a close. */
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
   * The history followed by the reply as sampled, or by `ids` (without close) instead, and a next turn. `given` is the reply as the
   * harness returns it.
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
