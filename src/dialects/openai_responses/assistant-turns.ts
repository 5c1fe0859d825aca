import type { AssistantMessage, ContentPart, ToolCall } from '../../schema/index.ts';
import type { Conversation } from '../conversation.ts';
import { completionOfItem } from './identifiers.ts';

/** The order in which a reply has its items. */
const STEPS = { reasoning: 0, text: 1, call: 2 } as const;
type Step = keyof typeof STEPS;

type Turn = {
  completionId: string | null;
  step: Step;
  readonly reasoning: string[];
  readonly texts: string[];
  readonly calls: ToolCall[];
  readonly results: { readonly callId: string; readonly parts: readonly ContentPart[] }[];
};

/**
 * One reply is several items on this wire and one message in canonical form. Items join the turn before them when their ids
 * name the same completion; where an id names none, when they come in the order of a reply and nothing stands between.
 */
export class AssistantTurns {
  private readonly conversation: Conversation;
  private turn: Turn | null = null;

  constructor(conversation: Conversation) {
    this.conversation = conversation;
  }

  reasoning(id: string | null | undefined, text: string): void {
    this.enter('reasoning', id).reasoning.push(text);
  }

  text(id: string | null | undefined, text: string): void {
    this.enter('text', id).texts.push(text);
  }

  call(id: string | null | undefined, callId: string, name: string, args: string): void {
    this.enter('call', id).calls.push({ id: callId, type: 'function', function: { name, arguments: args } });
  }

  /** Kept with the turn: clients may put the result of one call before the next call of the same turn. */
  result(callId: string, parts: readonly ContentPart[]): void {
    if (this.turn === null) this.conversation.tool(callId, parts);
    else this.turn.results.push({ callId, parts });
  }

  /** What follows belongs to no assistant turn. */
  close(): void {
    const { turn } = this;
    if (turn === null) return;
    this.turn = null;
    const text = turn.texts.join('');
    const reasoning = turn.reasoning.filter((piece) => piece !== '').join('\n');
    const message: AssistantMessage = {
      role: 'assistant',
      content: text === '' && turn.calls.length > 0 ? null : text,
      ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
      ...(turn.calls.length === 0 ? {} : { tool_calls: turn.calls }),
    };
    this.conversation.assistant(message, turn.completionId);
    for (const { callId, parts } of turn.results) this.conversation.tool(callId, parts);
  }

  private enter(step: Step, id: string | null | undefined): Turn {
    const completionId = completionOfItem(id);
    if (this.turn === null || !continues(this.turn, step, completionId)) {
      this.close();
      this.turn = { completionId, step, reasoning: [], texts: [], calls: [], results: [] };
    }
    this.turn.step = step;
    this.turn.completionId ??= completionId;
    return this.turn;
  }
}

function continues(turn: Turn, step: Step, completionId: string | null): boolean {
  if (turn.completionId !== null && completionId !== null) return turn.completionId === completionId;
  if (turn.results.length > 0) return false;
  return STEPS[step] > STEPS[turn.step] || (step === turn.step && step !== 'text');
}
