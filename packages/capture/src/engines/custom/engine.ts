import { type Clock, FloeError, messageOf, raceAbort } from '@floe-rl/core';
import type { EngineInfo, EngineSpec, PauseMode } from '@floe-rl/core/schema';
import { z } from 'zod';
import { CallHealth } from '../call-health.ts';
import {
  concatIds,
  concatLogprobs,
  joinVersionSpans,
  parseWith,
  resumedUsage,
  tokenIdsSchema,
} from '../chat/reply-tokens.ts';
import { checkedSample, type Sample } from '../checked-sample.ts';
import { forcesCall } from '../constraint.ts';
import type { Engine, GenerateReply, GenerateRequest, RenderRequest, SampledTokens } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import { LocalText, replyBound } from '../local-text.ts';
import { EngineVersions } from '../versions.ts';
import type { EngineConnection, EngineDefinition, EngineKit, SampleRequest, SamplingParameter } from './definition.ts';

/** The neutral value of each parameter, which leaves the model's distribution unchanged. */
const NEUTRAL: Readonly<Record<SamplingParameter, number>> = {
  temperature: 1,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  repetition_penalty: 1,
};
const PARAMETERS = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty'] as const;

const NOTES = [
  'prompts are rendered and replies are parsed by floe, with the tokenizer and template of the folder `tokenizer`',
  'replies arrive whole',
  'tool choices other than auto and none, and response formats, are refused',
];

const method = z.custom<(...args: never[]) => unknown>((value) => typeof value === 'function', 'must be a function');

const connectionSchema = z.looseObject({
  model: z.string().min(1),
  serverVersion: z.string().nullish(),
  contextTokens: z.int().min(1).nullish(),
  supports: z.array(z.enum(PARAMETERS)),
  logprobsMode: z.enum(['raw', 'processed']).optional(),
  sample: method,
  policyVersion: method.optional(),
  pause: method.optional(),
  resume: method.optional(),
  metrics: method.optional(),
  close: method.optional(),
});

const sampledSchema = z.looseObject({
  ids: tokenIdsSchema,
  logprobs: z.array(z.number()),
  finish: z.enum(['stop', 'length']),
  cachedTokens: z.int().min(0).nullish(),
});

const NO_TOKENS: SampledTokens = {
  responseIds: new Int32Array(0),
  responseLogprobs: new Float32Array(0),
  versionSpans: [],
  routedExperts: null,
};

type Parts = {
  readonly spec: EngineSpec;
  readonly server: EngineServer;
  readonly text: LocalText;
  readonly connection: EngineConnection;
  readonly clock: Clock;
};

/**
 * Connects to a server with an engine module of the operator. Rejects with the module's `FloeError`. Rejects with `engine_error` for any other
 * error of the module and for a connection that lacks a field. Rejects with `setup_failed` when `spec` names no usable tokenizer.
 */
export async function createCustomEngine(
  spec: EngineSpec,
  definition: EngineDefinition,
  clock: Clock,
): Promise<Engine> {
  const text = await LocalText.load(spec);
  const server = new EngineServer(spec, { clock, isOverflow: () => false });
  try {
    const connection = await guarded(server, () => definition.connect(spec, kitOf(server)));
    const parsed = connectionSchema.safeParse(connection);
    if (parsed.success) return new CustomEngine({ spec, server, text, connection, clock });
    const issue = parsed.error.issues[0];
    const what = `${issue?.path.map(String).join('.') || 'value'}: ${issue?.message}`;
    throw server.error('engine_error', `connect of the kind ${spec.kind} returned a wrong connection: ${what}`);
  } catch (error) {
    await server.close();
    throw error;
  }
}

function kitOf(server: EngineServer): EngineKit {
  return {
    async get(path, signal) {
      const reply = await server.controlGet(path, signal);
      if (reply.status !== 200) throw server.statusError(reply);
      return jsonOf(reply.body);
    },
    async post(path, body, signal) {
      const reply = await server.post(path, JSON.stringify(body), null, signal);
      return jsonOf(await reply.read());
    },
    error: (code, message) => server.error(code, message),
  };
}

/** Runs a function of the module. Errors that are no `FloeError` become `engine_error`. */
async function guarded<T>(server: EngineServer, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (FloeError.is(error)) throw error;
    const message = `engine ${server.engineId}: ${messageOf(error)}`;
    throw new FloeError('engine_error', message, { engine_id: server.engineId }, error);
  }
}

class CustomEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  private readonly versions: EngineVersions;

  constructor(parts: Parts) {
    const { connection, clock, server } = parts;
    this.parts = parts;
    this.calls = new CallHealth(server.engineId);
    const source = async () => ({ status: 200, body: versionBody(await connection.policyVersion?.()) });
    this.versions = new EngineVersions(clock, connection.policyVersion === undefined ? null : source);
  }

  info(): EngineInfo {
    const { server, spec, text, connection } = this.parts;
    return {
      engine_id: server.engineId,
      kind: spec.kind,
      base_url: spec.base_url,
      pool: spec.pool,
      model: connection.model,
      server_version: connection.serverVersion ?? null,
      max_model_len: this.contextTokens,
      logprobs_mode: connection.logprobsMode ?? spec.logprobs_mode,
      policy_version: this.versions.last,
      healthy: this.calls.healthy,
      streaming: false,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: {
        token_ids: true,
        token_input: 'generate',
        version_spans: false,
        pause: connection.pause !== undefined && connection.resume !== undefined,
        abort: false,
        cache_salt: false,
        notes: NOTES,
        template: text.facts,
      },
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      this.refuseUnsupported(request);
      return await this.sample(request, request.resumeFrom ?? NO_TOKENS, signal);
    });
  }

  countTokens(request: GenerateRequest): Promise<number> {
    return this.calls.track(async () => this.parts.text.promptOf({ ...request, prompt: null }).ids.length);
  }

  render(request: RenderRequest): Promise<Int32Array> {
    return this.calls.track(async () => this.parts.text.render(request));
  }

  detokenize(ids: Int32Array): Promise<string> {
    return this.calls.track(async () => this.parts.text.decode(ids));
  }

  pause(mode: PauseMode, signal: AbortSignal): Promise<void> {
    return this.control(signal, () => this.parts.connection.pause?.(mode, signal));
  }

  resume(signal: AbortSignal): Promise<void> {
    return this.control(signal, () => this.parts.connection.resume?.(signal));
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

  async metrics(signal: AbortSignal): Promise<string | null> {
    const { connection } = this.parts;
    return this.own(signal, async () => (await connection.metrics?.(signal)) ?? null);
  }

  async close(): Promise<void> {
    const { server, connection } = this.parts;
    try {
      await connection.close?.();
    } finally {
      await server.close();
    }
  }

  private get contextTokens(): number | null {
    const { connection, text } = this.parts;
    return connection.contextTokens ?? text.contextTokens;
  }

  /** Runs a function of the module. Rejects with the signal's reason when the signal aborts, also while the module ignores it. */
  private own<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    return raceAbort(guarded(this.parts.server, work), signal);
  }

  private async control(signal: AbortSignal, work: () => Promise<void> | undefined): Promise<void> {
    const { server, spec } = this.parts;
    if (!this.info().capabilities.pause) throw server.error('unsupported', `engines of kind ${spec.kind} cannot pause`);
    await this.own(signal, async () => work());
  }

  private refuseUnsupported(request: GenerateRequest): void {
    const { server, connection } = this.parts;
    const refuse = (field: string, value: unknown): never => {
      throw server.error('unsupported', `it does not support ${field} ${JSON.stringify(value)}`, { field });
    };
    if (forcesCall(request)) refuse('tool_choice', request.toolChoice);
    if (request.responseFormat !== null) refuse('response_format', request.responseFormat.type);
    for (const name of PARAMETERS) {
      const value = request.sampling[name];
      if (value !== NEUTRAL[name] && !connection.supports.includes(name)) refuse(name, value);
    }
  }

  private async sample(request: GenerateRequest, first: SampledTokens, signal: AbortSignal): Promise<GenerateReply> {
    const { server, text, connection, spec } = this.parts;
    const versionsOf = this.versions.beginReply(request.policyVersion);
    const prompt = text.promptOf(request);
    const firstCount = first.responseIds.length;
    const { engineId } = server;
    const { contextTokens } = this;
    const maxTokens = replyBound(request, { engineId, contextTokens, promptTokens: prompt.ids.length, firstCount });
    const ids = [...prompt.ids, ...first.responseIds];
    const sample = await this.sampled(sampleRequest(request, ids, maxTokens, text.ends.ids), signal);
    const responseIds = concatIds(first.responseIds, sample.ids);
    // The tokens have been sampled. An abort while their version is requested must not lose them.
    const spans = await server.finishing(signal, () => versionsOf({ count: sample.ids.length, spans: null }));
    return {
      promptIds: prompt.ids,
      responseIds,
      responseLogprobs: concatLogprobs(first.responseLogprobs, sample.logprobs),
      versionSpans: joinVersionSpans(first.versionSpans, firstCount, spans),
      routedExperts: null,
      logprobsMode: connection.logprobsMode ?? spec.logprobs_mode,
      ...text.parsed(request, responseIds, sample),
      usage: resumedUsage(prompt.ids.length, responseIds.length, sample.cachedTokens),
    };
  }

  private async sampled(request: SampleRequest, signal: AbortSignal): Promise<Sample> {
    const reported = await this.own(signal, () => this.parts.connection.sample(request, signal));
    const { ids, logprobs, finish, cachedTokens } = parseWith(sampledSchema, reported);
    const sample = {
      ids: Int32Array.from(ids),
      logprobs: Float32Array.from(logprobs),
      stopReason: finish,
      cachedTokens: cachedTokens ?? null,
    };
    const { maxTokens, endIds } = request;
    return checkedSample(sample, { maxTokens, endIds, contextTokens: request.ids.length });
  }
}

function sampleRequest(
  { completionId, sessionId, sampling, seed, stop }: GenerateRequest,
  ids: readonly number[],
  maxTokens: number,
  endIds: readonly number[],
): SampleRequest {
  const { max_tokens: _, seed: __, ...parameters } = sampling;
  return { requestId: completionId, sessionId, ids, maxTokens, sampling: parameters, seed, endIds, stop };
}

/** Returns a version in the form in which servers report it. */
function versionBody(version: string | null | undefined): Buffer {
  return Buffer.from(JSON.stringify({ weight_version: version ?? null }));
}
