import type { MessageDelta } from '../chat-reply.ts';
import { CALL_CLOSE, CALL_OPEN, readCall, THINK_CLOSE, THINK_OPEN } from './reply-text.ts';

export type TextStreamOptions = {
  /** The prompt opened the thinking. */
  readonly insideThinking: boolean;
  /** False: thinking stays in the content. */
  readonly separateReasoning: boolean;
  /** Names that may be called; null: calls are not looked for. */
  readonly tools: ReadonlySet<string> | null;
  readonly newCallId: (index: number) => string;
};

type Step = MessageDelta | 'more' | 'wait';

/**
 * Reads a reply's text as it comes, by the same marks as the whole reply is read by. A call is shown when its block is
 * complete; nothing is taken back. Text behind the first call is not shown; if no block was a call, the end shows them as content.
 */
export class TextStream {
  private readonly options: TextStreamOptions;
  private state: 'begin' | 'reasoning' | 'content' | 'calls';
  /** What is not decided yet. */
  private buffer = '';
  /** Everything from the first block on, for a reply without calls. */
  private blocks = '';
  private calls = 0;

  constructor(options: TextStreamOptions) {
    this.options = options;
    this.state = options.separateReasoning ? 'begin' : 'content';
  }

  get showedCalls(): boolean {
    return this.calls > 0;
  }

  /** Takes text in; says what a client is shown of it. `last`: no more will come. */
  push(text: string, last: boolean): MessageDelta {
    this.buffer += text;
    if (this.state === 'calls') this.blocks += text;
    const deltas: MessageDelta[] = [];
    for (;;) {
      const step = this.step(last);
      if (step === 'wait') break;
      if (step !== 'more') deltas.push(step);
    }
    return joined(deltas);
  }

  private step(last: boolean): Step {
    switch (this.state) {
      case 'begin':
        return this.begin(last);
      case 'reasoning':
        return this.upTo(THINK_CLOSE, last, 'reasoning');
      case 'content':
        return this.upTo(this.options.tools === null ? null : CALL_OPEN, last, 'content');
      case 'calls':
        return this.block(last);
    }
  }

  private begin(last: boolean): Step {
    const opens = this.buffer.startsWith(THINK_OPEN);
    if (!opens && !last && THINK_OPEN.startsWith(this.buffer)) return 'wait';
    if (opens) this.buffer = this.buffer.slice(THINK_OPEN.length);
    this.state = opens || this.options.insideThinking ? 'reasoning' : 'content';
    return 'more';
  }

  /** Shows the buffer up to `mark`, which ends the state; what may be the mark's beginning waits. */
  private upTo(mark: string | null, last: boolean, field: 'reasoning' | 'content'): Step {
    const found = mark === null ? -1 : this.buffer.indexOf(mark);
    if (mark !== null && found >= 0) {
      const shown = this.buffer.slice(0, found);
      if (field === 'reasoning') {
        this.buffer = this.buffer.slice(found + mark.length);
        this.state = 'content';
      } else {
        this.buffer = this.buffer.slice(found);
        this.blocks = this.buffer;
        this.state = 'calls';
      }
      return { [field]: shown };
    }
    const end = this.buffer.length - (mark === null || last ? 0 : heldBack(this.buffer, mark));
    if (end <= 0) return 'wait';
    const shown = this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(end);
    return { [field]: shown };
  }

  private block(last: boolean): Step {
    const start = this.buffer.indexOf(CALL_OPEN);
    const end = start < 0 ? -1 : this.buffer.indexOf(CALL_CLOSE, start + CALL_OPEN.length);
    if (end >= 0) {
      const call = readCall(this.buffer.slice(start + CALL_OPEN.length, end), this.options.tools ?? new Set());
      this.buffer = this.buffer.slice(end + CALL_CLOSE.length);
      if (call === null) return 'more';
      const index = this.calls++;
      const id = this.options.newCallId(index);
      return {
        calls: [
          { index, id, name: call.name },
          { index, argumentsText: call.parameters },
        ],
      };
    }
    if (!last || this.showedCalls || this.blocks === '') return 'wait';
    const content = this.blocks;
    this.blocks = '';
    this.buffer = '';
    return { content };
  }
}

/** Length of the longest end of `text` that is a beginning of `mark`. */
function heldBack(text: string, mark: string): number {
  for (let length = Math.min(text.length, mark.length - 1); length > 0; length--) {
    if (mark.startsWith(text.slice(text.length - length))) return length;
  }
  return 0;
}

function joined(deltas: readonly MessageDelta[]): MessageDelta {
  const reasoning = deltas.map((delta) => delta.reasoning ?? '').join('');
  const content = deltas.map((delta) => delta.content ?? '').join('');
  const calls = deltas.flatMap((delta) => delta.calls ?? []);
  return {
    ...(reasoning === '' ? {} : { reasoning }),
    ...(content === '' ? {} : { content }),
    ...(calls.length === 0 ? {} : { calls }),
  };
}
