import { type Clock, FloeError } from '@floe-rl/core';
import type { EngineCapabilities, EngineInfo, EngineSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import { CallHealth } from '../call-health.ts';
import { isEventStream } from '../chat/event-stream.ts';
import { IdScanner } from '../chat/reply-scan.ts';
import type { Engine, GenerateReply, GenerateRequest } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import type { OpenReply } from '../http-exchange.ts';
import { UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { EngineVersions } from '../versions.ts';
import { chatStream, parseChatReply, parseTokenReply } from './reply.ts';
import { chatBody, extraSampling, isDispensable, isOptionalField, type OptionalField } from './request.ts';
import { probeTokens, type TokenProbe, type TokenSupport } from './token-probe.ts';

const modelsSchema = z.looseObject({
  data: z.array(z.looseObject({ id: z.string(), max_model_len: z.int().nullish() })),
});

/** OpenAI's error code for a request field that the API does not know. Most other servers with the same API ignore unknown fields. */
const UNKNOWN_FIELD_CODE = 'unsupported_parameter';
const OVERFLOW_CODE = 'context_length_exceeded';
/** Matches error messages about an overlong prompt, for servers that have no error code for it. */
const OVERFLOW_WORDING = /context (?:length|size|window)|maximum model length|prompt is too long/i;

const NOT_REQUESTED: TokenProbe = { fields: null, reason: 'they are not requested, because token_ids is off' };

/**
 * Connects to any server with OpenAI's chat completions API. OpenAI's own API reports no token ids, so its replies cannot be trained on. For
 * servers that report token ids and log-probabilities, the mode of the log-probabilities is measured.
 *
 * Rejects with `engine_unavailable` when the server cannot be reached. Rejects with `engine_error` when the server refuses the API key, or
 * when it lists no models and `spec` names none. Also rejects with `engine_error` when `spec` requires token ids and the server reports none.
 */
export async function createOpenaiEngine(spec: EngineSpec, { clock }: { readonly clock: Clock }): Promise<Engine> {
  const server = new EngineServer(spec, {
    clock,
    isOverflow: ({ code, message }) => code === OVERFLOW_CODE || OVERFLOW_WORDING.test(message),
    headersOf: ({ completionId }) => ({ 'x-request-id': completionId }),
  });
  try {
    const model = await findModel(server, spec.model);
    const tokens = spec.token_ids === 'off' ? NOT_REQUESTED : await probeTokens(server, spec, model.model);
    if (tokens.fields === null && spec.token_ids === 'required') {
      throw server.error('engine_error', `token_ids are required, but it does not return them: ${tokens.reason}`);
    }
    return new OpenaiEngine({ server, spec, model, tokens }, clock);
  } catch (error) {
    await server.close();
    throw error;
  }
}

/** The model that an engine uses. `listed` states whether `/v1/models` lists it. */
type Model = { readonly model: string; readonly maxModelLen: number | null; readonly listed: boolean };

async function findModel(server: EngineServer, requested: string | null): Promise<Model> {
  const reply = await server.controlGet('/v1/models');
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  const { status } = reply;
  if (status >= 500 || status === 401 || status === 403 || status === 429) throw server.statusError(reply);
  const listed = status === 200 && parsed.success ? parsed.data.data : [];
  const entry = requested === null ? listed[0] : listed.find(({ id }) => id === requested);
  const model = entry?.id ?? requested;
  if (model === null) throw server.error('engine_error', '/v1/models lists no models; name the one to use', { status });
  return { model, maxModelLen: entry?.max_model_len ?? null, listed: entry !== undefined };
}

type Parts = {
  readonly server: EngineServer;
  readonly spec: EngineSpec;
  readonly model: Model;
  readonly tokens: TokenProbe;
};

class OpenaiEngine implements Engine {
  private readonly server: EngineServer;
  private readonly spec: EngineSpec;
  private readonly model: Model;
  /** How the API returns token ids; `null` when it returns none. */
  private readonly tokens: TokenSupport | null;
  private readonly notes: readonly string[];
  private readonly scanner = new IdScanner();
  private readonly versions: EngineVersions;
  /** Request fields that the API has refused because it does not know them. */
  private readonly unknown = new Set<OptionalField>();
  /** Sampling parameters that tasks have set and that were not sent, because the API has no field for them. */
  private readonly dropped = new Set<string>();
  private readonly calls: CallHealth;

  constructor({ server, spec, model, tokens }: Parts, clock: Clock) {
    this.server = server;
    this.calls = new CallHealth(server.engineId);
    this.spec = spec;
    this.model = model;
    this.tokens = tokens.fields === null ? null : tokens;
    this.notes =
      tokens.fields === null
        ? [`no token ids, so that its replies are not trained on: ${tokens.reason}`]
        : ['replies arrive whole, because they have token ids', ...tokens.logprobs.notes];
    this.versions = new EngineVersions(clock, null);
  }

  info(): EngineInfo {
    const { server, spec, model } = this;
    return {
      engine_id: server.engineId,
      kind: 'openai',
      base_url: spec.base_url,
      pool: spec.pool,
      model: model.model,
      server_version: null,
      max_model_len: model.maxModelLen,
      logprobs_mode: this.tokens?.logprobs.mode ?? null,
      policy_version: this.versions.last,
      healthy: this.calls.healthy,
      streaming: this.isStreaming,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilities(),
    };
  }

  /** Replies with token ids are not streamed, because servers differ in whether their streams contain all ids. */
  private get isStreaming(): boolean {
    return this.spec.stream === 'auto' && this.tokens === null;
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      if (request.prompt !== null) throw this.server.error('unsupported', 'the API accepts no token ids');
      if (this.tokens !== null) return this.tokenReply(request, this.tokens, signal);
      for (const field of Object.keys(extraSampling(request))) this.dropped.add(field);
      const listener = this.isStreaming ? request.listener : undefined;
      const reply = await this.open(request, listener !== undefined, signal);
      if (listener === undefined || !isEventStream(reply)) return parseChatReply(await reply.read());
      const stream = chatStream(listener);
      await reply.each((bytes) => stream.push(bytes));
      return stream.reply();
    });
  }

  countTokens(): Promise<number> {
    return Promise.reject(this.server.error('unsupported', 'the API does not count tokens'));
  }

  render(): Promise<Int32Array> {
    return Promise.reject(this.server.error('unsupported', 'the API does not render messages'));
  }

  detokenize(): Promise<string> {
    return Promise.reject(this.server.error('unsupported', 'the API converts no token ids to text'));
  }

  pause(): Promise<void> {
    return Promise.reject(this.server.error('unsupported', 'the API cannot be paused'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.server.error('unsupported', 'the API cannot be paused'));
  }

  setPolicyVersion(version: string): void {
    this.versions.assign(version);
  }

  policyVersion(): Promise<string | null> {
    return this.versions.current();
  }

  weightsMayHaveChanged(): void {
    this.versions.mayHaveChanged();
  }

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  close(): Promise<void> {
    return this.server.close();
  }

  private async tokenReply(
    request: GenerateRequest,
    { logprobs, model }: TokenSupport,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const versionsOf = this.versions.beginReply(request.policyVersion);
    const body = await (await this.open(request, false, signal)).read();
    const models = new Set([this.model.model, ...(model === null ? [] : [model])]);
    const { sessionId, stop } = request;
    const { reply } = parseTokenReply(body, { sessionId, models, scanner: this.scanner, stop });
    const versionSpans = await versionsOf({ count: reply.responseIds.length, spans: null });
    return { ...reply, versionSpans, routedExperts: null, logprobsMode: logprobs.mode };
  }

  private capabilities(): EngineCapabilities {
    return {
      token_ids: this.tokens !== null,
      token_input: 'none',
      version_spans: false,
      pause: false,
      abort: false,
      cache_salt: false,
      notes: [
        ...this.notes,
        ...(this.model.listed ? [] : [`/v1/models does not list ${this.model.model}`]),
        ...[...this.unknown].map((field) => `the API does not know ${field}; it is not sent`),
        ...[...this.dropped].map((field) => `the API has no field for ${field}; it is not sent`),
      ],
      template: UNKNOWN_TEMPLATE,
    };
  }

  /**
   * Posts a chat completion. When the API refuses a field as unknown, the request is repeated without that field if the reply does not
   * depend on it.
   */
  private async open(request: GenerateRequest, stream: boolean, signal: AbortSignal): Promise<OpenReply> {
    for (;;) {
      try {
        const { unknown, tokens } = this;
        const body = chatBody(this.model.model, request, { stream, unknown, tokenFields: tokens?.fields ?? null });
        return await this.server.post('/v1/chat/completions', body, request, signal);
      } catch (error) {
        const field = unknownField(error);
        if (field === null || this.unknown.has(field) || !isDispensable(request, field)) throw error;
        this.unknown.add(field);
      }
    }
  }
}

function unknownField(error: unknown): OptionalField | null {
  if (!FloeError.is(error) || error.code !== 'engine_rejected') return null;
  const { param, engine_code } = error.details;
  return engine_code === UNKNOWN_FIELD_CODE && isOptionalField(param) ? param : null;
}
