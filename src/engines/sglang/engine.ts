import type { Clock } from '../../core/clock.ts';
import { asFloeError, FloeError } from '../../core/errors.ts';
import type { EngineInfo, EngineSpec, PauseMode, VersionSpan } from '../../schema/index.ts';
import { CallHealth } from '../call-health.ts';
import type { Engine, EngineNotice, GenerateReply, GenerateRequest, RenderRequest, SampledTokens } from '../engine.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';
import type { HttpReply } from '../http.ts';
import { EngineVersions } from '../versions.ts';
import { joinReply } from './continuation.ts';
import { readExperts } from './experts.ts';
import { versionName } from './facts.ts';
import { type Profile, probeServer } from './probe.ts';
import { hasImage, hasLostIds, type ReadReply, Sampler } from './sampler.ts';
import { sglangServer } from './server.ts';

export type SglangDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/** `forceNative`: prompts of ids go to `/generate` even where chat completions take them. */
export type SglangOptions = { readonly forceNative?: boolean };

/**
 * An SGLang server, of any release that tells token ids. Rejects with `engine_unavailable` when it cannot be reached, `engine_error`
 * when it is none, tells no ids or does not serve the model that `spec` names.
 */
export async function createSglangEngine(
  spec: EngineSpec,
  deps: SglangDeps,
  options: SglangOptions = {},
): Promise<Engine> {
  const server = sglangServer(spec);
  try {
    const nowMs = deps.clock.nowMs();
    const profile = await probeServer(server, {
      spec,
      salts: [`floe-probe-${nowMs}-1`, `floe-probe-${nowMs}-2`],
      forceNative: options.forceNative === true,
    });
    const versions = new EngineVersions(deps.clock, async () =>
      namedWeights(await server.look(profile.info.weightPath)),
    );
    await versions.current();
    const sampler = new Sampler(server, profile, deps.clock);
    return new SglangEngine({ spec, server, profile, versions, sampler, notice: deps.notice ?? (() => {}) });
  } catch (error) {
    await server.close();
    throw asFloeError(error, 'engine_unavailable');
  }
}

/** Weights that nobody named have no version, whatever SGLang calls them. */
function namedWeights(reply: HttpReply): HttpReply {
  const told = (jsonOf(reply.body) as { weight_version?: string | number | null } | null)?.weight_version;
  return { ...reply, body: Buffer.from(JSON.stringify({ weight_version: versionName(told) })) };
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
  /** Once a stream has lost ids, the next would as well. */
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
      model: profile.info.model,
      server_version: profile.info.version,
      max_model_len: profile.info.maxModelLen,
      logprobs_mode: spec.logprobs_mode,
      policy_version: versions.last,
      healthy: this.calls.healthy,
      streaming: this.streaming,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: profile.capabilities,
    };
  }

  private get streaming(): boolean {
    return this.parts.profile.chat.streamed !== null && !this.losesIds;
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      const { prompt, begun } = request;
      if (prompt === null || begun === null) return this.recorded(request, await this.sample(request, signal));
      if (request.maxTokens !== null && begun.responseIds.length >= request.maxTokens) {
        return this.ended(request, prompt.ids, begun, signal);
      }
      const { message, logprobsMode, ...reply } = await this.recorded(request, await this.sample(request, signal));
      return { ...joinReply(prompt, begun, reply), message, logprobsMode };
    });
  }

  async countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.calls.track(() => this.renderer().count(request.messageTexts, request.toolsText, signal, request));
  }

  async render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.calls.track(async () => {
      if (request.messageTexts.some(hasImage)) {
        throw this.parts.server.fail('unsupported', 'images cannot be rendered to ids', { images: true });
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
    this.parts.versions.name(version);
  }

  metrics(signal: AbortSignal): Promise<string | null> {
    return this.parts.server.metrics(signal);
  }

  close(): Promise<void> {
    return this.parts.server.close();
  }

  private async control(path: string, body: object, signal: AbortSignal): Promise<void> {
    const { server, profile } = this.parts;
    if (!profile.capabilities.pause) throw server.fail('unsupported', 'it cannot be paused');
    const reply = await server.tell(path, JSON.stringify(body), signal);
    if (reply.status !== 200) throw server.refused(reply);
  }

  private renderer(): NonNullable<Profile['renderer']> {
    const { server, profile } = this.parts;
    if (profile.renderer === null) throw server.fail('unsupported', 'its /tokenize takes no messages');
    return profile.renderer;
  }

  /**
   * Harnesses ask for bounds such as 32,000 tokens whatever the model; SGLang refuses a bound that does not fit behind the
   * prompt instead of lowering it. Without a bound it takes the room there is, which is then less than what was asked for.
   */
  private async sample(request: GenerateRequest, signal: AbortSignal): Promise<DatedReply> {
    const before = this.parts.versions.current();
    const bound = this.boundOf(request);
    const reply = await this.abortable(request, signal, async () => {
      try {
        return await this.listened(request, bound, signal);
      } catch (error) {
        if (bound === null || !FloeError.is(error) || error.details.context_overflow !== true) throw error;
        return await this.listened(request, null, signal);
      }
    });
    return { ...reply, versionSpans: reply.versionSpans ?? (await this.oneSpan(reply, await before)) };
  }

  /** `/generate` has a small bound of its own, so that it is told the room there is. */
  private boundOf({ prompt, begun, maxTokens }: GenerateRequest): number | null {
    const { tokenInput, info } = this.parts.profile;
    const length = info.maxModelLen;
    const fits = maxTokens !== null && (length === null || maxTokens < length);
    const begunCount = begun?.responseIds.length ?? 0;
    if (fits) return maxTokens - begunCount;
    if (prompt === null || length === null || tokenInput !== 'generate') return null;
    // One less than that: SGLang wants the last place free.
    const room = length - prompt.ids.length - begunCount - 1;
    return room > 0 ? room : null;
  }

  private async listened(request: GenerateRequest, bound: number | null, signal: AbortSignal): Promise<ReadReply> {
    try {
      return await this.parts.sampler.sample(request, bound, this.streaming ? request.listener : undefined, signal);
    } catch (error) {
      if (hasLostIds(error)) this.giveUpStreams(error);
      throw error;
    }
  }

  /** Ends the call on the server too when the signal aborts. */
  private abortable<T>({ completionId }: GenerateRequest, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    const { server, profile } = this.parts;
    if (!profile.capabilities.abort) return work();
    return server.abortable(signal, '/abort_request', JSON.stringify({ rid: completionId }), work);
  }

  private giveUpStreams(error: FloeError): void {
    if (this.losesIds) return;
    this.losesIds = true;
    const { server, notice } = this.parts;
    notice('a streamed reply has lost token ids; replies of this engine arrive whole from now on', {
      engine_id: server.engineId,
      reason: error.message,
    });
  }

  /** Without spans from the server: one version if it was the same before and after, otherwise nobody knows. */
  private async oneSpan(reply: ReadReply, before: string | null): Promise<VersionSpan[]> {
    const after = reply.endVersion ?? (await this.parts.versions.afterReply());
    return [{ version: before === after ? before : null, start: 0, end: reply.responseIds.length }];
  }

  private recorded(request: GenerateRequest, reply: DatedReply): GenerateReply {
    const { promptIds, responseIds, responseLogprobs, versionSpans, message, finishReason, stop, usage } = reply;
    const shape = this.parts.profile.experts ? this.parts.profile.info.expertShape : null;
    return {
      promptIds: request.prompt === null || request.begun !== null ? promptIds : request.prompt.ids,
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
      logprobsMode: this.parts.spec.logprobs_mode,
    };
  }

  /** A reply that was broken off when it had reached its bound. */
  private async ended(
    request: GenerateRequest,
    promptIds: Int32Array,
    begun: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const { responseIds, responseLogprobs, versionSpans, routedExperts } = begun;
    return {
      promptIds,
      responseIds,
      responseLogprobs,
      versionSpans,
      routedExperts,
      message: await this.parts.sampler.readBegun(request, begun, signal),
      finishReason: 'length',
      stop: null,
      usage: { prompt_tokens: promptIds.length, completion_tokens: responseIds.length, cached_tokens: null },
      logprobsMode: this.parts.spec.logprobs_mode,
    };
  }
}

type DatedReply = ReadReply & { readonly versionSpans: readonly VersionSpan[] };
