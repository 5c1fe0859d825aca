import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { EngineInfo, EngineSpec, PauseMode, TemplateFacts, VersionSpan } from '../../schema/index.ts';
import { CallHealth } from '../call-health.ts';
import type { Engine, EngineNotice, GenerateReply, GenerateRequest, RenderRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { isEventStream } from '../event-stream.ts';
import { IdScanner } from '../id-scan.ts';
import type { ParsedReply } from '../record.ts';
import { EngineVersions } from '../versions.ts';
import { joinedSpans, type TokenCalls, type TokenReply, type TokenRequest } from './generate.ts';
import { capabilitiesOf, type ServerFacts } from './probe.ts';
import { connect } from './registration.ts';
import { countTokens, detokenize, render } from './rendering.ts';
import { parseReply, parseTextReply, type ReplyContext } from './reply.ts';
import { chatBody } from './request.ts';
import { vllmServer } from './server.ts';
import { ReplyStreamReader } from './stream.ts';

export type VllmDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/**
 * A vLLM server, once it has told what it can do. Rejects with `engine_unavailable` when it cannot be reached, `engine_error` when
 * it does not serve the model that `spec` names.
 */
export async function createVllmEngine(spec: EngineSpec, deps: VllmDeps): Promise<Engine> {
  const server = vllmServer(spec);
  try {
    const versions = new EngineVersions(deps.clock, () => server.look('/weight_info'));
    const [found] = await Promise.all([connect(server, spec.model, deps.clock), versions.current()]);
    return new VllmEngine({ server, spec, versions, notice: deps.notice ?? (() => {}), ...found });
  } catch (error) {
    await server.close();
    throw error;
  }
}

type Parts = {
  readonly server: EngineServer;
  readonly spec: EngineSpec;
  readonly versions: EngineVersions;
  readonly notice: EngineNotice;
  readonly facts: ServerFacts;
  readonly template: TemplateFacts;
  readonly notes: readonly string[];
  /** Null: prompts cannot be ids. */
  readonly tokens: TokenCalls | null;
};

class VllmEngine implements Engine {
  private readonly parts: Parts;
  private readonly base: Omit<EngineInfo['capabilities'], 'template' | 'version_spans' | 'token_input'>;
  private readonly scanner = new IdScanner();
  /** Null: the server takes none, or does not tell what it was prompted by. */
  private tokens: TokenCalls | null;
  private readonly calls: CallHealth;
  /** Once a stream has lost ids, the next would as well. */
  private losesIds = false;
  /** Whether the last reply told which weights sampled it. */
  private tellsSpans = false;
  /** As last told: every call asks, and what is told hardly ever changes. */
  private capabilities: EngineInfo['capabilities'] | null = null;

  constructor(parts: Parts) {
    this.parts = parts;
    this.calls = new CallHealth(parts.server.engineId);
    this.base = capabilitiesOf(parts.facts);
    this.tokens = parts.tokens;
  }

  info(): EngineInfo {
    const { server, spec, facts, versions } = this.parts;
    return {
      engine_id: server.engineId,
      kind: 'vllm',
      base_url: spec.base_url,
      pool: spec.pool,
      model: facts.model,
      server_version: facts.serverVersion,
      max_model_len: facts.maxModelLen,
      logprobs_mode: this.base.token_ids ? spec.logprobs_mode : null,
      policy_version: versions.last,
      healthy: this.calls.healthy,
      streaming: this.streaming,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilitiesNow(),
    };
  }

  private capabilitiesNow(): EngineInfo['capabilities'] {
    const token_input = this.tokens === null ? 'none' : 'generate';
    const known = this.capabilities;
    if (known?.token_input === token_input && known.version_spans === this.tellsSpans) return known;
    const { template, notes } = this.parts;
    const { base } = this;
    this.capabilities = {
      ...base,
      token_input,
      version_spans: this.tellsSpans,
      notes: [...base.notes, ...notes],
      template,
    };
    return this.capabilities;
  }

  private get streaming(): boolean {
    return this.parts.spec.stream === 'auto' && !this.losesIds && this.base.token_ids;
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    const { prompt } = request;
    const kind = prompt === null ? 'chatcmpl' : 'generate-tokens';
    return this.calls.track(() =>
      this.abortable(`${kind}-${request.completionId}`, signal, async () => {
        const versionBefore = this.parts.versions.current();
        const { reply, newSpans } =
          prompt === null ? await this.chat(request, signal) : await this.complete({ ...request, prompt }, signal);
        return {
          ...reply,
          logprobsMode: this.base.token_ids ? this.parts.spec.logprobs_mode : null,
          versionSpans: await this.spansOf(request, reply, newSpans, versionBefore),
        };
      }),
    );
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    const { server, facts } = this.parts;
    return this.calls.track(() => countTokens(server, facts, request, signal));
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    const { server, facts } = this.parts;
    return this.calls.track(() => render(server, facts, request, signal));
  }

  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string> {
    const { server, facts } = this.parts;
    return this.calls.track(() => detokenize(server, facts, ids, signal));
  }

  pause(mode: PauseMode, signal: AbortSignal): Promise<void> {
    return this.control(`/pause?mode=${mode}`, signal);
  }

  resume(signal: AbortSignal): Promise<void> {
    return this.control('/resume', signal);
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

  private async control(path: string, signal: AbortSignal): Promise<void> {
    const { server } = this.parts;
    if (!this.base.pause) throw server.fail('unsupported', 'it cannot be paused');
    const reply = await server.post(path, '{}', null, signal);
    await reply.read();
  }

  /** Ends the call on the server too when the signal aborts. */
  private abortable<T>(requestId: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    if (!this.base.abort) return work();
    // An empty list would end everybody's calls, so there is always one.
    const body = JSON.stringify({ request_ids: [requestId] });
    return this.parts.server.abortable(signal, '/abort_requests', body, work);
  }

  private async complete(request: TokenRequest, signal: AbortSignal): Promise<TokenReply> {
    const { server } = this.parts;
    if (this.tokens === null) throw server.fail('unsupported', 'prompts cannot be given as token ids');
    try {
      return await this.tokens.generate(request, this.contextOf(request), signal);
    } catch (error) {
      if (FloeError.is(error) && error.details.unverifiable === true) this.giveUpTokens(error);
      throw error;
    }
  }

  /**
   * Harnesses ask for bounds such as 32,000 tokens whatever the model; vLLM refuses a bound that does not fit behind the
   * prompt instead of lowering it. Without a bound it takes the room there is, which is then less than what was asked for.
   */
  private async chat(request: GenerateRequest, signal: AbortSignal): Promise<TokenReply> {
    const { maxModelLen } = this.parts.facts;
    const hopeless = request.maxTokens !== null && maxModelLen !== null && request.maxTokens >= maxModelLen;
    const maxTokens = hopeless ? null : request.maxTokens;
    const ask = async (bound: number | null): Promise<TokenReply> => {
      const reply = await this.converse(request, bound, signal);
      return { reply, newSpans: reply.versionSpans };
    };
    try {
      return await ask(maxTokens);
    } catch (error) {
      if (maxTokens === null || !FloeError.is(error) || error.details.context_overflow !== true) throw error;
      return await ask(null);
    }
  }

  private async converse(
    request: GenerateRequest,
    maxTokens: number | null,
    signal: AbortSignal,
  ): Promise<ParsedReply> {
    const { server, facts } = this.parts;
    const listener = this.streaming ? request.listener : undefined;
    const options = { model: facts.model, maxTokens, stream: listener !== undefined, unknown: facts.unknownFields };
    const reply = await server.post('/v1/chat/completions', chatBody(request, options), request, signal);
    const context = this.contextOf(request);
    if (!this.base.token_ids) return parseTextReply(await reply.read(), context);
    if (listener === undefined || !isEventStream(reply)) return parseReply(await reply.read(), context);
    const stream = new ReplyStreamReader(context, listener);
    try {
      await reply.each((bytes) => stream.push(bytes));
      return stream.reply();
    } catch (error) {
      if (FloeError.is(error) && error.details.lost_ids === true) this.giveUpStreams(error);
      throw error;
    }
  }

  private contextOf({ completionId, sessionId }: GenerateRequest): ReplyContext {
    return { completionId, sessionId, models: this.parts.facts.modelNames, scanner: this.scanner };
  }

  private giveUpStreams(error: FloeError): void {
    if (this.losesIds) return;
    this.losesIds = true;
    this.notice('a streamed reply has lost token ids; replies of this engine arrive whole from now on', error);
  }

  private giveUpTokens(error: FloeError): void {
    if (this.tokens === null) return;
    this.tokens = null;
    this.notice('replies do not tell what they were prompted by; this engine renders messages from now on', error);
  }

  private notice(message: string, error: FloeError): void {
    const { server, notice } = this.parts;
    notice(message, { engine_id: server.engineId, reason: error.message });
  }

  /** Without spans from the server: one version if it was the same before and after, otherwise nobody knows. */
  private async spansOf(
    { begun, prompt }: GenerateRequest,
    { responseIds }: ParsedReply,
    told: readonly VersionSpan[] | null,
    versionBefore: Promise<string | null>,
  ): Promise<VersionSpan[]> {
    if (responseIds.length === 0) return [];
    const before = prompt === null ? null : begun;
    // A reply that was over when it was to be continued says nothing of the server.
    if (told === null || told.length > 0) this.tellsSpans = told !== null;
    if (told !== null) return joinedSpans(before, told);
    const [first, last] = [await versionBefore, await this.parts.versions.afterReply()];
    const end = responseIds.length - (before?.responseIds.length ?? 0);
    return joinedSpans(before, [{ version: first === last ? first : null, start: 0, end }]);
  }
}
