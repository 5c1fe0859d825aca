import { type Clock, linkAbort } from '@floe-rl/core';
import type { AssistantMessage } from '@floe-rl/core/schema';
import { agreedBeginning, type ReplyBeginning } from '../chat/reply-beginning.ts';
import { invalidReply } from '../chat/reply-tokens.ts';
import { forcesCall } from '../constraint.ts';
import type { ReplyListener } from '../engine.ts';
import type { TokenRequest } from './generated.ts';
import type { MessageReader } from './message-reader.ts';
import type { ReplyContext } from './reply.ts';

/**
 * Minimum number of new ids between two previews once something was shown. Until then every chunk is previewed, so that the first visible
 * text is shown as soon as it is sampled.
 */
const MIN_STEP_IDS = 16;
/**
 * Share of its ids that a reply must grow by before the next preview. A preview parses all ids so far, so previews must become rarer as the
 * reply grows. With a quarter, all previews of a reply together parse about five times its ids, with each of two parsers.
 */
const STEP_SHARE = 1 / 4;
/**
 * Longest time in milliseconds between two previews while ids arrive. It equals the interval of the proxy's heartbeats. It shortens the steps
 * of replies with more than about 5,000 ids.
 */
const MAX_GAP_MS = 10_000;

type PreviewDeps = {
  readonly reader: MessageReader;
  readonly clock: Clock;
  readonly request: TokenRequest;
  readonly context: ReplyContext;
  readonly listener: ReplyListener;
  /** Whether text may be shown before the reply is complete. If not, only thinking is shown. */
  readonly showsText: boolean;
  readonly signal: AbortSignal;
};

/**
 * Shows the beginning of a reply to a listener while the reply is sampled as ids. With the first ids, and repeatedly as more arrive, two of
 * the server's parsers convert the ids so far to a message. One is the parser for streams, and the other is the parser that will parse the
 * complete reply. The part on which both agree is shown. Failures of these requests end the preview and not the reply.
 */
export class ReplyPreview {
  private readonly deps: PreviewDeps;
  private readonly abort: ReturnType<typeof linkAbort>;
  private readonly showsText: boolean;
  private shown: ReplyBeginning = { reasoning: '', text: '' };
  private hasStarted = false;
  private isOver = false;
  /** Number of ids of the last preview, and the time of the monotonic clock at which it began. */
  private last = { count: 0, ms: 0 };
  private running: Promise<void> | null = null;

  constructor(deps: PreviewDeps) {
    this.deps = deps;
    this.abort = linkAbort(deps.signal);
    this.showsText = deps.showsText && !forcesCall(deps.request);
  }

  /** Receives all ids that have been sampled so far, and starts a preview if one is due. */
  take(ids: readonly number[]): void {
    if (!this.hasStarted) {
      this.hasStarted = true;
      this.deps.listener.started(this.deps.request.prompt.ids.length);
    }
    const nowMs = this.deps.clock.monotonicMs();
    if (this.isOver || this.running !== null || !this.isDue(ids.length, nowMs)) return;
    this.last = { count: ids.length, ms: nowMs };
    this.running = this.preview(Int32Array.from(ids)).finally(() => {
      this.running = null;
    });
  }

  /** Ends the previews of this reply. Resolves when none of their requests is running and the listener is no longer called. */
  async end(): Promise<void> {
    this.isOver = true;
    this.abort.abort(new Error('the reply is complete'));
    await this.running;
    this.abort.release();
  }

  /** Throws `engine_error` with `details.contradicts_preview` when the complete message does not begin with what was shown. */
  assertBeginningOf({ reasoning_content, content }: AssistantMessage): void {
    const { reasoning, text } = this.shown;
    const isReasoningShown =
      text === '' ? (reasoning_content ?? '').startsWith(reasoning) : reasoning_content === (reasoning || undefined);
    if (isReasoningShown && (content ?? '').startsWith(text)) return;
    const reason = 'its complete message does not begin with the part that was streamed';
    throw invalidReply(reason, undefined, { contradicts_preview: true });
  }

  private isDue(count: number, nowMs: number): boolean {
    const { last, shown } = this;
    const minStep = shown.reasoning === '' && shown.text === '' ? 1 : MIN_STEP_IDS;
    const step = Math.max(minStep, Math.ceil(last.count * STEP_SHARE));
    return count >= last.count + step || nowMs - last.ms >= MAX_GAP_MS;
  }

  private async preview(ids: Int32Array): Promise<void> {
    const { reader, request, context } = this.deps;
    try {
      const { streamed, whole } = await reader.preview(request, ids, context, this.abort.signal);
      if (this.isOver) return;
      this.show(agreedBeginning(streamed, whole, request.stop));
      // Nothing after a tool call is shown, so later previews would show nothing new.
      if (streamed.hasCalls) this.isOver = true;
    } catch {
      this.isOver = true;
    }
  }

  private show({ reasoning, text }: ReplyBeginning): void {
    const { listener } = this.deps;
    const isContinued =
      reasoning.startsWith(this.shown.reasoning) && (this.shown.text === '' || reasoning === this.shown.reasoning);
    if (!isContinued || !text.startsWith(this.shown.text)) return;
    const newReasoning = reasoning.slice(this.shown.reasoning.length);
    const newText = this.showsText ? text.slice(this.shown.text.length) : '';
    this.shown = { reasoning, text: this.shown.text + newText };
    if (newReasoning !== '') listener.delta({ kind: 'reasoning', text: newReasoning });
    if (newText !== '') listener.delta({ kind: 'text', text: newText });
  }
}
