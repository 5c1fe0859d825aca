import type { ChatMessage } from '../../src/schema/index.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { CALL_CLOSE, CLOSE, type CompletionInput, makeCompletion } from './session.ts';

/** Role marks of the made-up template: a turn is mark, content, CLOSE; a prompt ends with the assistant's mark. */
const MARKS = { system: 10, user: 11, assistant: 12, tool: 13 } as const;

/** What a harness would send: messages, and the ids that the template makes of them. */
export type History = { readonly ids: readonly number[]; readonly messages: readonly ChatMessage[] };

/** Writes sessions of a made-up template with content ids that never repeat, so that nothing matches by chance. */
export class Transcript {
  readonly completions: Completion[] = [];
  private nextId = 1000;

  /** `count` ids that occur nowhere else. */
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

  /** A model call on `history`; by default the reply has four new ids and a close. */
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
   * The history with the reply as it was sampled, or with `ids` (no close) in its place, and a next turn. `given` is the reply as the
   * harness sends it back.
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
