import { asFloeError, type Clock, FloeError } from '@floe-rl/core';
import type { EngineInfo, EngineSpec, PauseMode, VersionSpan } from '@floe-rl/core/schema';
import { CallHealth } from '../call-health.ts';
import { hasImage } from '../chat/messages.ts';
import type { Engine, EngineNotice, GenerateReply, GenerateRequest, RenderRequest, SampledTokens } from '../engine.ts';
import { EngineServer, type HttpReply, jsonOf } from '../engine-server.ts';
import { EngineVersions } from '../versions.ts';
import { joinReply, readExperts } from './joined-reply.ts';
import { type Profile, probeServer } from './probe.ts';
import { versionOf } from './reply.ts';
import { type ReadReply, Sampler } from './sampler.ts';

type SglangDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/** Options for tests. With `forceNative`, prompts of token ids are sent to `/generate` even if chat completions accept them. */
type SglangOptions = { readonly forceNative?: boolean };

/**
 * Connects to an SGLang server of any release that reports token ids (see `IdSource`). Rejects with `engine_unavailable` when the server
 * cannot be reached. Rejects with `engine_error` when it is not an SGLang server, reports no token ids or does not serve the model that `spec`
 * names.
 */
export async function createSglangEngine(
  spec: EngineSpec,
  deps: SglangDeps,
  options: SglangOptions = {},
): Promise<Engine> {
  const server = sglangServer(spec, deps.clock);
  try {
    const nowMs = deps.clock.nowMs();
    const profile = await probeServer(server, {
      spec,
      salts: [`floe-probe-${nowMs}-1`, `floe-probe-${nowMs}-2`],
      forceNative: options.forceNative === true,
    });
    const versions = new EngineVersions(deps.clock, async () =>
      withVersionOf(await server.controlGet(profile.facts.versionPath)),
    );
    await versions.current();
    const sampler = new Sampler(server, profile, deps.clock);
    return new SglangEngine({ spec, server, profile, versions, sampler, notice: deps.notice ?? (() => {}) });
  } catch (error) {
    await server.close();
    throw asFloeError(error, 'engine_unavailable');
  }
}

/** Matches SGLang's three error messages about an overlong prompt, because SGLang has no error code for this error. */
const OVERFLOW_WORDING =
  /longer than the model's context length|maximum context length|exceeds the maximum allowed length/i;

/** Makes the HTTP client of one SGLang server. */
export function sglangServer(spec: EngineSpec, clock: Clock): EngineServer {
  return new EngineServer(spec, {
    clock,
    isOverflow: ({ message }) => OVERFLOW_WORDING.test(message),
    // Routers send all calls with the same routing key to the same server, so the session id is used as the key.
    headersOf: ({ sessionId }) => ({ 'x-smg-routing-key': sessionId, 'x-session-id': sessionId }),
  });
}

/** Replaces SGLang's name for weights without a version by `null` in the reply that reports the policy version. */
function withVersionOf(reply: HttpReply): HttpReply {
  const reported = (jsonOf(reply.body) as { weight_version?: string | number | null } | null)?.weight_version;
  return { ...reply, body: Buffer.from(JSON.stringify({ weight_version: versionOf(reported) })) };
}

type Parts = {
  readonly spec: EngineSpec;
  readonly server: EngineServer;
  readonly profile: Profile;
  readonly versions: EngineVersions;
  readonly sampler: Sampler;
  readonly notice: EngineNotice;
};

class SglangEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  /**
   * Whether a stream of this engine has lost token ids. If so, replies are no longer streamed, because later streams would lose ids as
   * well.
   */
  private losesIds = false;

  constructor(parts: Parts) {
    this.parts = parts;
    this.calls = new CallHealth(parts.server.engineId);
  }

  info(): EngineInfo {
    const { server, spec, profile, versions } = this.parts;
    return {
      engine_id: server.engineId,
      kind: 'sglang',
      base_url: spec.base_url,
      pool: spec.pool,
      model: profile.facts.model,
      server_version: profile.facts.version,
      max_model_len: profile.facts.maxModelLen,
      logprobs_mode: profile.logprobsMode,
      policy_version: versions.last,
      healthy: this.calls.healthy,
      streaming: this.isStreaming,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: profile.capabilities,
    };
  }

  private get isStreaming(): boolean {
    return this.parts.profile.chat.streamFlags !== null && !this.losesIds;
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      const { prompt, resumeFrom } = request;
      if (prompt === null || resumeFrom === null) return this.toReply(request, await this.sample(request, signal));
      if (request.maxTokens !== null && resumeFrom.responseIds.length >= request.maxTokens) {
        return this.replyAtBound(request, prompt.ids, resumeFrom, signal);
      }
      const { message, logprobsMode, ...reply } = this.toReply(request, await this.sample(request, signal));
      return { ...joinReply(prompt, resumeFrom, reply), message, logprobsMode };
    });
  }

  async countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.calls.track(() => this.renderer().count(request.messageTexts, request.toolsText, signal, request));
  }

  async render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.calls.track(async () => {
      if (request.messageTexts.some(hasImage)) {
        throw this.parts.server.error('unsupported', 'images cannot be rendered to ids', { images: true });
      }
      return this.renderer().render(request.messageTexts, request, signal, request);
    });
  }

  async detokenize(ids: Int32Array, signal: AbortSignal): Promise<string> {
    return this.calls.track(() => this.renderer().detokenize(ids, signal));
  }

  async pause(mode: PauseMode, signal: AbortSignal): Promise<void> {
    await this.control('/pause_generation', { mode: mode === 'keep' ? 'in_place' : 'abort' }, signal);
  }

  async resume(signal: AbortSignal): Promise<void> {
    await this.control('/continue_generation', {}, signal);
  }

  setPolicyVersion(version: string): void {
    this.parts.versions.assign(version);
  }

  policyVersion(): string | null | Promise<string | null> {
    const { versions } = this.parts;
    return versions.isCurrent ? versions.last : versions.current();
  }

  weightsMayHaveChanged(): void {
    this.parts.versions.mayHaveChanged();
  }

  metrics(signal: AbortSignal): Promise<string | null> {
    return this.parts.server.metrics(signal);
  }

  close(): Promise<void> {
    return this.parts.server.close();
  }

  private async control(path: string, body: object, signal: AbortSignal): Promise<void> {
    const { server, profile } = this.parts;
    if (!profile.capabilities.pause) throw server.error('unsupported', 'it cannot be paused');
    const reply = await server.controlPost(path, JSON.stringify(body), signal);
    if (reply.status !== 200) throw server.statusError(reply);
  }

  private renderer(): NonNullable<Profile['renderer']> {
    const { server, profile } = this.parts;
    if (profile.renderer === null) throw server.error('unsupported', 'its /tokenize takes no messages');
    return profile.renderer;
  }

  /**
   * Samples one reply. Harnesses request token limits such as 32,000 for any model; SGLang refuses a limit that exceeds the context left
   * after the prompt, instead of lowering it. The call is then repeated without a limit. SGLang samples at most to the end of the context,
   * which is below the requested limit.
   */
  private async sample(request: GenerateRequest, signal: AbortSignal): Promise<ReplyWithSpans> {
    const versionsOf = this.parts.versions.beginReply(request.policyVersion);
    const bound = this.boundOf(request);
    const reply = await this.abortable(request, signal, async () => {
      try {
        return await this.sampleWithin(request, bound, signal);
      } catch (error) {
        if (bound === null || !FloeError.is(error) || error.details.context_overflow !== true) throw error;
        return await this.sampleWithin(request, null, signal);
      }
    });
    const { responseIds, versionSpans: spans, endVersion: end } = reply;
    return { ...reply, versionSpans: await versionsOf({ count: responseIds.length, spans, end }) };
  }

  /**
   * Returns the maximum number of tokens that this call may sample; `null` when the request is sent without a limit. `/generate` has a
   * small default limit, so its requests always get a limit when the context length is known.
   */
  private boundOf({ prompt, resumeFrom, maxTokens }: GenerateRequest): number | null {
    const { tokenInput, facts } = this.parts.profile;
    const contextTokens = facts.maxModelLen;
    const isWithinContext = maxTokens !== null && (contextTokens === null || maxTokens < contextTokens);
    const firstCount = resumeFrom?.responseIds.length ?? 0;
    if (isWithinContext) return maxTokens - firstCount;
    if (prompt === null || contextTokens === null || tokenInput !== 'generate') return null;
    // SGLang requires the last position of the context to stay unused.
    const capacity = contextTokens - prompt.ids.length - firstCount - 1;
    return capacity > 0 ? capacity : null;
  }

  private async sampleWithin(request: GenerateRequest, bound: number | null, signal: AbortSignal): Promise<ReadReply> {
    try {
      return await this.parts.sampler.sample(request, bound, this.isStreaming ? request.listener : undefined, signal);
    } catch (error) {
      if (FloeError.is(error) && error.details.lost_ids === true) this.stopStreaming(error);
      throw error;
    }
  }

  /** Runs one call. When the signal aborts, the call is also aborted on the server. */
  private abortable<T>({ completionId }: GenerateRequest, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const { server, profile } = this.parts;
    if (!profile.capabilities.abort) return work();
    return server.abortable(signal, '/abort_request', JSON.stringify({ rid: completionId }), work);
  }

  private stopStreaming(error: FloeError): void {
    if (this.losesIds) return;
    this.losesIds = true;
    const { server, notice } = this.parts;
    notice('a streamed reply has lost token ids; this engine no longer streams', {
      engine_id: server.engineId,
      reason: error.message,
    });
  }

  private toReply(request: GenerateRequest, reply: ReplyWithSpans): GenerateReply {
    const { promptIds, responseIds, responseLogprobs, versionSpans, message, finishReason, stop, usage } = reply;
    const shape = this.parts.profile.experts ? this.parts.profile.facts.expertShape : null;
    return {
      promptIds: request.prompt === null || request.resumeFrom !== null ? promptIds : request.prompt.ids,
      responseIds,
      responseLogprobs,
      versionSpans,
      routedExperts:
        shape === null || reply.experts === null
          ? null
          : readExperts(reply.experts, shape, promptIds.length + responseIds.length),
      message,
      finishReason,
      stop,
      usage,
      logprobsMode: this.parts.profile.logprobsMode,
    };
  }

  /**
   * Makes the reply for a resumed call whose earlier tokens have already reached the token limit. Nothing is sampled; only the message is
   * parsed from the earlier tokens.
   */
  private async replyAtBound(
    request: GenerateRequest,
    promptIds: Int32Array,
    resumeFrom: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const { responseIds, responseLogprobs, versionSpans, routedExperts } = resumeFrom;
    return {
      promptIds,
      responseIds,
      responseLogprobs,
      versionSpans,
      routedExperts,
      message: await this.parts.sampler.readAtBound(request, resumeFrom, signal),
      finishReason: 'length',
      stop: null,
      usage: { prompt_tokens: promptIds.length, completion_tokens: responseIds.length, cached_tokens: null },
      logprobsMode: this.parts.profile.logprobsMode,
    };
  }
}

type ReplyWithSpans = ReadReply & { readonly versionSpans: readonly VersionSpan[] };
