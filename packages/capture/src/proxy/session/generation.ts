import { onAbort, wellFormed, wellFormedCalls } from '@floe-rl/core';
import type { CanonicalRequest } from '../../dialects/dialect.ts';
import type { CallContext, ReplyListener } from '../../engines/engine.ts';
import type { EnginePools, PooledReply } from '../../engines/pool/engine-pools.ts';
import type { Completion } from '../../tokens/completion.ts';
import { type PendingCall, PromptBuilder, verifiedPrompt } from '../prompt/prompt-builder.ts';
import type { SuffixRenderer } from '../prompt/suffix-renderer.ts';
import type { Call, CallParts, StreamedReply } from './call.ts';
import type { CallFailures } from './call-failures.ts';
import { engineRequest } from './engine-request.ts';
import type { SessionRecord } from './record.ts';
import type { RequestMemory } from './request-memory.ts';
import type { ProxySessionSpec } from './session-spec.ts';

type GenerationDeps = {
  readonly engines: EnginePools;
  readonly suffixes: SuffixRenderer;
  readonly record: SessionRecord;
  readonly memory: RequestMemory;
  readonly failures: CallFailures;
};

/** The second part of a session's model calls: builds the prompt of an admitted call, and lets an engine sample the reply. */
export class Generation {
  private readonly spec: ProxySessionSpec;
  private readonly deps: GenerationDeps;
  private readonly prompts: PromptBuilder;

  constructor(spec: ProxySessionSpec, deps: GenerationDeps) {
    this.spec = spec;
    this.deps = deps;
    const { engines, suffixes, record } = deps;
    this.prompts = new PromptBuilder(spec.engine, engines, suffixes, {
      recorded: (id) => record.completion(id),
      imageUrl: (reference) => record.images.urlOf(reference),
    });
  }

  /** Generates and records the reply of an admitted call. */
  async run({ parts, signal, reply: partial }: Call): Promise<Completion> {
    const { completionId, pool, pending, request } = parts;
    const { engines, memory, record } = this.deps;
    const removeListener = onAbort(signal, () => this.noteFailure(parts));
    try {
      const { traceparent } = parts.span;
      const names = { completionId, sessionId: this.spec.sessionId, pool, traceparent };
      const input = await this.prompts.build(names, pending, signal);
      const prompt = input.built?.prompt ?? null;
      const listener = this.listenerOf(partial);
      const sent = engineRequest(names, request, pending.request, input.texts, prompt, listener);
      const pooled = wellFormedReply(await engines.generate(sent, signal));
      const { reply, engineId } = pooled;
      const promptIds =
        prompt === null ? memory.prompt(pending.thread, reply.promptIds) : verifiedPrompt(prompt, reply, engineId);
      return await record.add(parts, { pooled, promptIds, input, capture: this.prompts.captureOf(input, reply) });
    } finally {
      removeListener();
      parts.release();
    }
  }

  /** Returns the length of the prompt that {@link run} would build, in tokens. */
  async countTokens(
    names: CallContext,
    request: CanonicalRequest,
    pending: PendingCall,
    signal: AbortSignal,
  ): Promise<number> {
    const { length, texts } = await this.prompts.count(names, pending, signal);
    if (length !== null) return length;
    return await this.deps.engines.countTokens(engineRequest(names, request, pending.request, texts, null), signal);
  }

  /**
   * Notes the failure of a call that is aborted while it is being retried. The client may have disconnected because no engine answered in
   * time.
   */
  private noteFailure({ completionId, request }: CallParts): void {
    const failure = this.deps.engines.failureOf(completionId);
    if (failure !== null) this.deps.failures.callEnded(request, failure);
  }

  private listenerOf(reply: StreamedReply | null): ReplyListener | undefined {
    const { onActivity } = this.spec;
    if (reply === null || onActivity === undefined) return reply ?? undefined;
    return {
      started: (promptTokens) => {
        onActivity();
        reply.started(promptTokens);
      },
      delta: (delta) => {
        onActivity();
        reply.delta(delta);
      },
    };
  }
}

/**
 * Returns an engine's reply with U+FFFD in place of lone surrogates in its message. Harnesses, tools and environments could not read any part
 * of a message with a lone surrogate. The ids of the reply do not change.
 */
function wellFormedReply(pooled: PooledReply): PooledReply {
  const { message } = pooled.reply;
  const sound = wellFormedCalls(wellFormed(message));
  return sound === message ? pooled : { ...pooled, reply: { ...pooled.reply, message: sound } };
}
