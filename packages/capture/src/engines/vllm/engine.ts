import { type Clock, FloeError } from '@floe-rl/core';
import type { EngineInfo, EngineSpec, PauseMode, VersionSpan } from '@floe-rl/core/schema';
import { CallHealth } from '../call-health.ts';
import { isEventStream } from '../chat/event-stream.ts';
import { IdScanner } from '../chat/reply-scan.ts';
import { joinVersionSpans } from '../chat/reply-tokens.ts';
import type { Engine, EngineNotice, GenerateReply, GenerateRequest, RenderRequest } from '../engine.ts';
import { EngineServer } from '../engine-server.ts';
import type { ProbedLogprobs } from '../logprobs-probe.ts';
import { EngineVersions, type ReplyVersions } from '../versions.ts';
import type { TokenCalls, TokenReply } from './generate.ts';
import type { TokenRequest } from './generated.ts';
import { logprobsOf, type Profile, probeServer } from './probe.ts';
import { countTokens, detokenize, render } from './rendering.ts';
import { type ParsedReply, parseChatReply, parseTextReply, type ReplyContext } from './reply.ts';
import { chatBody } from './request.ts';
import { capabilitiesOf } from './server-facts.ts';
import { chatStream } from './stream.ts';

type VllmDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/**
 * Connects to a vLLM server and determines what it supports. Rejects with `engine_unavailable` when the server cannot be reached, and
 * with `engine_error` when it does not serve the model that `spec` names.
 */
export async function createVllmEngine(spec: EngineSpec, deps: VllmDeps): Promise<Engine> {
  const server = vllmServer(spec, deps.clock);
  try {
    const versions = new EngineVersions(deps.clock, () => server.controlGet('/weight_info'));
    const [profile] = await Promise.all([probeServer(server, spec, deps.clock), versions.current()]);
    return new VllmEngine({ server, spec, versions, notice: deps.notice ?? (() => {}), profile });
  } catch (error) {
    await server.close();
    throw error;
  }
}

/**
 * Matches error messages about an overlong prompt. vLLM has no error code for this error. Newer releases name the parameter {@link
 * OVERFLOW_PARAM} in the error, but older releases do not.
 */
const OVERFLOW_WORDING = /maximum context length|maximum model length|max_model_len|longer than the maximum/i;
const OVERFLOW_PARAM = 'input_tokens';

/** Maximum number of times that a measurement of the logprobs mode which failed at registration is repeated. */
const MAX_REPEATED_MEASURES = 3;

/** Makes the HTTP client of one vLLM server. */
export function vllmServer(spec: EngineSpec, clock: Clock): EngineServer {
  return new EngineServer(spec, {
    clock,
    isOverflow: ({ param, message }) => param === OVERFLOW_PARAM || OVERFLOW_WORDING.test(message),
    headersOf: ({ completionId, sessionId }) => ({
      'x-request-id': completionId,
      // Routers use this header to send all calls of a session to the server that caches its prefix.
      'x-session-id': sessionId,
    }),
  });
}

type Parts = {
  readonly server: EngineServer;
  readonly spec: EngineSpec;
  readonly versions: EngineVersions;
  readonly notice: EngineNotice;
  readonly profile: Profile;
};

class VllmEngine implements Engine {
  private readonly parts: Parts;
  private readonly base: Omit<EngineInfo['capabilities'], 'template' | 'version_spans' | 'token_input'>;
  private readonly scanner = new IdScanner();
  private readonly calls: CallHealth;
  /**
   * Runs calls whose prompt is token ids. It is `null` when the server does not support these calls. It becomes `null` when a reply does
   * not return the ids of the prompt that it answers.
   */
  private tokens: TokenCalls | null;
  /**
   * Whether a stream of this engine has lost token ids. If so, replies are no longer streamed, because later streams would lose ids as
   * well.
   */
  private losesIds = false;
  /**
   * Whether the complete message of a reply to a prompt of token ids did not begin with the part that had been streamed. If so, replies to
   * such prompts are no longer streamed.
   */
  private contradictsPreviews = false;
  private logprobs: ProbedLogprobs | null;
  private measuresLeft = MAX_REPEATED_MEASURES;
  /** The measurement of the logprobs mode that is in progress; `null` when there is none. */
  private measuring: Promise<void> | null = null;
  /** Whether the last reply reported the policy versions that sampled it. */
  private reportsSpans = false;
  /** The last result of {@link capabilities}. It is cached because every call reads the capabilities and they rarely change. */
  private cachedCapabilities: EngineInfo['capabilities'] | null = null;

  constructor(parts: Parts) {
    this.parts = parts;
    this.calls = new CallHealth(parts.server.engineId);
    this.base = capabilitiesOf(parts.profile.facts);
    this.tokens = parts.profile.tokens;
    this.logprobs = parts.profile.logprobs;
  }

  info(): EngineInfo {
    const { server, spec, versions } = this.parts;
    const { facts } = this.parts.profile;
    return {
      engine_id: server.engineId,
      kind: 'vllm',
      base_url: spec.base_url,
      pool: spec.pool,
      model: facts.model,
      server_version: facts.serverVersion,
      max_model_len: facts.maxModelLen,
      logprobs_mode: this.logprobs?.mode ?? null,
      policy_version: versions.last,
      healthy: this.calls.healthy,
      streaming: this.isStreaming,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilities(),
    };
  }

  private capabilities(): EngineInfo['capabilities'] {
    const token_input = this.tokens === null ? 'none' : 'generate';
    const cached = this.cachedCapabilities;
    if (cached?.token_input === token_input && cached.version_spans === this.reportsSpans) return cached;
    const { template, notes } = this.parts.profile;
    const { base } = this;
    this.cachedCapabilities = {
      ...base,
      token_input,
      version_spans: this.reportsSpans,
      notes: [...base.notes, ...notes, ...(this.logprobs?.notes ?? [])],
      template,
    };
    return this.cachedCapabilities;
  }

  private get isStreaming(): boolean {
    return this.parts.spec.stream === 'auto' && !this.losesIds && this.base.token_ids;
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    const idPrefix = request.prompt === null ? 'chatcmpl' : 'generate-tokens';
    const requestId = `${idPrefix}-${request.completionId}`;
    return this.calls.track(() => this.abortable(requestId, signal, () => this.sampled(request, signal)));
  }

  private async sampled(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    const { prompt } = request;
    const versionsOf = this.parts.versions.beginReply(request.policyVersion);
    const { reply, newSpans } =
      prompt === null ? await this.chat(request, signal) : await this.generateFromIds({ ...request, prompt }, signal);
    if (this.logprobs?.isRepeatable === true) await this.repeatMeasurement();
    return {
      promptIds: reply.promptIds,
      responseIds: reply.responseIds,
      responseLogprobs: reply.responseLogprobs,
      logprobsMode: this.logprobs?.mode ?? null,
      versionSpans: await this.versionSpansOf(request, reply, newSpans, versionsOf),
      routedExperts: reply.routedExperts,
      message: reply.message,
      finishReason: reply.finishReason,
      stop: reply.stop,
      usage: reply.usage,
    };
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    const { server, profile } = this.parts;
    return this.calls.track(() => countTokens(server, profile.facts, request, signal));
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    const { server, profile } = this.parts;
    return this.calls.track(() => render(server, profile.facts, request, signal));
  }

  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string> {
    const { server, profile } = this.parts;
    return this.calls.track(() => detokenize(server, profile.facts, ids, signal));
  }

  pause(mode: PauseMode, signal: AbortSignal): Promise<void> {
    return this.control(`/pause?mode=${mode}`, signal);
  }

  resume(signal: AbortSignal): Promise<void> {
    return this.control('/resume', signal);
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

  private async control(path: string, signal: AbortSignal): Promise<void> {
    const { server } = this.parts;
    if (!this.base.pause) throw server.error('unsupported', 'it cannot be paused');
    const reply = await server.post(path, '{}', null, signal);
    await reply.read();
  }

  /** Runs one call. When the signal aborts, the call is also aborted on the server. */
  private abortable<T>(requestId: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    if (!this.base.abort) return work();
    // The list of request ids must never be empty, because that would abort the calls of all clients.
    const body = JSON.stringify({ request_ids: [requestId] });
    return this.parts.server.abortable(signal, '/abort_requests', body, work);
  }

  private async generateFromIds(request: TokenRequest, signal: AbortSignal): Promise<TokenReply> {
    const { server } = this.parts;
    if (this.tokens === null) throw server.error('unsupported', 'prompts cannot be given as token ids');
    const listener = this.isStreaming && !this.contradictsPreviews ? request.listener : undefined;
    try {
      return await this.tokens.generate({ ...request, listener }, this.contextOf(request), signal);
    } catch (error) {
      if (FloeError.is(error)) this.adaptTo(error);
      throw error;
    }
  }

  /**
   * Samples a chat completion. Harnesses request token limits such as 32,000 for any model; vLLM refuses a limit that exceeds the context
   * left after the prompt, instead of lowering it. The call is then sent without a limit. vLLM samples at most to the end of the context,
   * which is below the requested limit.
   */
  private async chat(request: GenerateRequest, signal: AbortSignal): Promise<TokenReply> {
    const { maxModelLen } = this.parts.profile.facts;
    const isTooLarge = request.maxTokens !== null && maxModelLen !== null && request.maxTokens >= maxModelLen;
    const maxTokens = isTooLarge ? null : request.maxTokens;
    let reply: ParsedReply;
    try {
      reply = await this.chatCompletion(request, maxTokens, signal);
    } catch (error) {
      if (maxTokens === null || !FloeError.is(error) || error.details.context_overflow !== true) throw error;
      reply = await this.chatCompletion(request, null, signal);
    }
    return { reply, newSpans: reply.versionSpans };
  }

  private async chatCompletion(
    request: GenerateRequest,
    maxTokens: number | null,
    signal: AbortSignal,
  ): Promise<ParsedReply> {
    const { server } = this.parts;
    const { facts } = this.parts.profile;
    const listener = this.isStreaming ? request.listener : undefined;
    const options = { model: facts.model, maxTokens, stream: listener !== undefined, unknown: facts.unknownFields };
    const reply = await server.post('/v1/chat/completions', chatBody(request, options), request, signal);
    const context = this.contextOf(request);
    if (!this.base.token_ids) return parseTextReply(await reply.read(), context);
    if (listener === undefined || !isEventStream(reply)) return parseChatReply(await reply.read(), context);
    const stream = chatStream(context, listener);
    try {
      await reply.each((bytes) => stream.push(bytes));
      return stream.reply();
    } catch (error) {
      if (FloeError.is(error) && error.details.lost_ids === true) this.stopStreaming(error);
      throw error;
    }
  }

  /**
   * Repeats the measurement of the log-probabilities' mode after a reply has arrived. An earlier measurement failed because the server was
   * paused or had failed. The reply shows that the server is running.
   */
  private async repeatMeasurement(): Promise<void> {
    if (this.measuring === null && this.measuresLeft === 0) return;
    this.measuring ??= this.measure();
    await this.measuring;
  }

  private async measure(): Promise<void> {
    const { server, spec, profile } = this.parts;
    this.measuresLeft--;
    try {
      this.logprobs = await logprobsOf(server, profile.facts, spec);
      this.cachedCapabilities = null;
    } catch {
      // The server could not be reached. The next reply repeats the measurement.
    } finally {
      this.measuring = null;
    }
  }

  private contextOf({ completionId, sessionId }: GenerateRequest): ReplyContext {
    return { completionId, sessionId, models: this.parts.profile.facts.modelNames, scanner: this.scanner };
  }

  /**
   * Stops using the feature that failed in a call with a prompt of token ids: such prompts, streaming, or streaming of incomplete messages.
   */
  private adaptTo(error: FloeError): void {
    const { unverifiable, lost_ids: lostIds, contradicts_preview: contradictsPreview } = error.details;
    if (unverifiable === true) this.stopUsingIds(error);
    if (lostIds === true) this.stopStreaming(error);
    if (contradictsPreview === true) this.stopPreviews(error);
  }

  private stopPreviews(error: FloeError): void {
    if (this.contradictsPreviews) return;
    this.contradictsPreviews = true;
    this.notify(
      'a complete message does not begin with the part that was streamed; replies in tokens mode are no longer streamed',
      error,
    );
  }

  private stopStreaming(error: FloeError): void {
    if (this.losesIds) return;
    this.losesIds = true;
    this.notify('a streamed reply has lost token ids; this engine no longer streams', error);
  }

  private stopUsingIds(error: FloeError): void {
    if (this.tokens === null) return;
    this.tokens = null;
    this.notify('a reply does not show its prompt; prompts are no longer given to this engine as token ids', error);
  }

  private notify(message: string, error: FloeError): void {
    const { server, notice } = this.parts;
    notice(message, { engine_id: server.engineId, reason: error.message });
  }

  /** Returns the version spans of a reply, including the spans of the tokens that it resumes. */
  private async versionSpansOf(
    { resumeFrom, prompt }: GenerateRequest,
    { responseIds }: ParsedReply,
    newSpans: readonly VersionSpan[] | null,
    versionsOf: ReplyVersions,
  ): Promise<VersionSpan[]> {
    const first = prompt === null ? null : resumeFrom;
    const firstCount = first?.responseIds.length ?? 0;
    // An empty list means that the resumed reply was already complete and nothing was sampled. It does not show whether the server reports
    // spans.
    if (responseIds.length > 0 && newSpans?.length !== 0) this.reportsSpans = newSpans !== null;
    const spans = await versionsOf({ count: responseIds.length - firstCount, spans: newSpans });
    return first === null ? spans : joinVersionSpans(first.versionSpans, firstCount, spans);
  }
}
