import type { ErrorCode, FloeError } from '@floe-rl/core';
import { MAIN_THREAD } from '../../dialects/call-kinds/prompt-view.ts';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import { isAuxiliary } from './completion-record.ts';

/** The parts of a model call that determine which agent made it, and for what purpose. */
type CallLabel = Pick<CanonicalRequest, 'thread' | 'callKind'>;

/** Codes of calls and requests that ended because their client disconnected, or because the session ended. Neither is a failure. */
const NO_FAILURES: readonly ErrorCode[] = ['cancelled', 'session_closed'];

/** How a model call ended; `error` is `null` when it was answered. */
type CallEnd = { readonly error: FloeError | null };

/**
 * Keeps how the last model calls of a session ended. From this the gateway decides whether the engine or the agent caused the end of a run.
 * The calls of the main agent decide. A failed call of a sub-agent usually becomes a tool result, and the main agent continues. A failed
 * auxiliary call, such as the request for a title, changes nothing.
 */
export class CallFailures {
  private lastOfMain: CallEnd | null = null;
  private lastOfAgents: CallEnd | null = null;
  private lastAuxiliary: CallEnd | null = null;
  private lastRefusal: FloeError | null = null;

  /** Records the end of a model call that had begun. `error` is `null` when the call was answered. */
  callEnded({ thread, callKind }: CallLabel, error: FloeError | null): void {
    if (error !== null && NO_FAILURES.includes(error.code)) return;
    const end = { error };
    if (isAuxiliary(callKind)) {
      this.lastAuxiliary = end;
      return;
    }
    this.lastOfAgents = end;
    if (thread === MAIN_THREAD) this.lastOfMain = end;
    if (error === null) this.lastRefusal = null;
  }

  /**
   * Records a request that the proxy refused, so that no model call began. A refused model call replaces an earlier refusal. A refused
   * request on an unknown path does not.
   */
  requestRefused(error: FloeError, isModelCall: boolean): void {
    if (NO_FAILURES.includes(error.code)) return;
    if (isModelCall || this.lastRefusal === null) this.lastRefusal = error;
  }

  /**
   * The failure of the main agent's last model call; `null` when the call was answered. As long as no call of the main agent has ended, this
   * is {@link ofAgents}.
   */
  get ofMain(): FloeError | null {
    return this.lastOfMain === null ? this.ofAgents : this.lastOfMain.error;
  }

  /**
   * The failure of the last model call of the main agent and its sub-agents; `null` when the call was answered. As long as no such call has
   * ended, this is the failure of the last auxiliary call.
   */
  get ofAgents(): FloeError | null {
    return (this.lastOfAgents ?? this.lastAuxiliary)?.error ?? null;
  }

  /** The last refusal since an agent's model call was last answered; `null` when there is none. {@link ofAgents} does not contain refusals. */
  get refusal(): FloeError | null {
    return this.lastRefusal;
  }
}
