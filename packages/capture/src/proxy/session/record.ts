import { type Clock, FloeError } from '@floe-rl/core';
import type { Capture } from '@floe-rl/core/schema';
import type { PooledReply } from '../../engines/pool/engine-pools.ts';
import type { Completion } from '../../tokens/completion.ts';
import type { CompletionJournal } from '../journal/journal.ts';
import { PrefixIndex } from '../prompt/prefix-index.ts';
import { type PromptInput, turnOf } from '../prompt/prompt-builder.ts';
import type { AdmittedParts } from './call.ts';
import { completionOf } from './completion-record.ts';
import { RecordLimit } from './record-limit.ts';
import { SessionImages } from './session-images.ts';
import type { ProxySessionSpec } from './session-spec.ts';

/** A reply to record, with the ids of its prompt, its input to the engine, and its capture mode. */
type SampledReply = {
  readonly pooled: PooledReply;
  readonly promptIds: Int32Array;
  readonly input: PromptInput;
  readonly capture: Capture;
};

/** The third part of a session's model calls: the recorded completions, their images, and the conversations that later calls may continue. */
export class SessionRecord {
  readonly images = new SessionImages();
  readonly limit: RecordLimit;
  readonly turns = new PrefixIndex();
  sampledTokens = 0;
  private readonly spec: ProxySessionSpec;
  private readonly journal: CompletionJournal;
  private readonly clock: Clock;
  private readonly recorded: Completion[] = [];
  private readonly byId = new Map<string, Completion>();

  constructor(spec: ProxySessionSpec, journal: CompletionJournal, clock: Clock) {
    this.spec = spec;
    this.journal = journal;
    this.clock = clock;
    this.limit = new RecordLimit(spec.maxRecordedBytes ?? Number.POSITIVE_INFINITY, () => spec.onRecordLimit?.());
  }

  /** The completions in the order in which they were recorded. */
  get completions(): readonly Completion[] {
    return this.recorded;
  }

  /** Returns the completion with this id; `null` when there is none. */
  completion(completionId: string): Completion | null {
    return this.byId.get(completionId) ?? null;
  }

  /**
   * Returns the completion with this id if its reply may have been sent to a client; `null` when the id is unknown or the engine aborted
   * the reply.
   */
  sentReply(completionId: string): Completion | null {
    const completion = this.completion(completionId);
    return completion?.finishReason === 'abort' ? null : completion;
  }

  /**
   * Records the completion of a call. Resolves with the completion when it is durable. When the engine aborted the reply, records it and
   * rejects with `engine_error`. Also rejects as {@link CompletionJournal.append} does.
   */
  async add(parts: AdmittedParts, { pooled, promptIds, input, capture }: SampledReply): Promise<Completion> {
    const { pending } = parts;
    const totalMs = this.clock.monotonicMs() - parts.arrivedMs;
    const images = this.images.unrecorded(parts.images);
    const request = images.size === 0 ? pending.request : { ...pending.request, images };
    const completion = completionOf(this.spec, parts, request, pooled, capture, promptIds, totalMs);
    const recordBytes = await this.journal.append(completion, this.recorded);
    this.images.markRecorded(images);
    this.limit.add(pending.request, recordBytes);
    this.recorded.push(completion);
    this.byId.set(completion.completionId, completion);
    this.turns.add(turnOf(completion, pending, input), pending.match.last);
    this.sampledTokens += completion.responseIds.length;
    this.spec.onProgress?.(this.recorded.length, this.sampledTokens, completion.message);
    if (completion.finishReason === 'abort') {
      const { engineId } = pooled;
      throw new FloeError('engine_error', `engine ${engineId} broke off the reply`, { engine_id: engineId });
    }
    return completion;
  }
}
