import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { EngineCapabilities, EngineInfo, EngineSpec } from '../../schema/index.ts';
import { CallHealth } from '../call-health.ts';
import type { Engine, GenerateReply, GenerateRequest } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import { isEventStream } from '../event-stream.ts';
import type { OpenReply } from '../http.ts';
import { UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { parseReply } from './reply.ts';
import { canDoWithout, chatBody, droppedSampling, isOptionalField, type OptionalField } from './request.ts';
import { ReplyStreamReader } from './stream.ts';

const modelsSchema = z.looseObject({
  data: z.array(z.looseObject({ id: z.string(), max_model_len: z.int().nullish() })),
});

/** As OpenAI names the refusal of a field; servers that follow its API mostly pass unknown fields over. */
const UNKNOWN_FIELD = 'unsupported_parameter';
const OVERFLOW = 'context_length_exceeded';
/** Of servers that have no such code. */
const OVERFLOW_WORDING = /context (?:length|size|window)|maximum model length|prompt is too long/i;

/**
 * Any API like OpenAI's chat completions, for evaluation and data generation: it tells no token ids, so that nothing of it is
 * trained on. Rejects with `engine_unavailable` when it cannot be reached, `engine_error` when it takes no such key, or lists no
 * models and `spec` names none.
 */
export async function createOpenaiEngine(spec: EngineSpec): Promise<Engine> {
  const server = new EngineServer(spec, {
    isOverflow: ({ code, message }) => code === OVERFLOW || OVERFLOW_WORDING.test(message),
  });
  try {
    return new OpenaiEngine(server, spec, await findModel(server, spec.model));
  } catch (error) {
    await server.close();
    throw error;
  }
}

type Model = { readonly model: string; readonly maxModelLen: number | null; readonly listed: boolean };

async function findModel(server: EngineServer, wanted: string | null): Promise<Model> {
  const reply = await server.look('/v1/models');
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  const { status } = reply;
  if (status >= 500 || status === 401 || status === 403 || status === 429) throw server.refused(reply);
  const listed = status === 200 && parsed.success ? parsed.data.data : [];
  const entry = wanted === null ? listed[0] : listed.find(({ id }) => id === wanted);
  const model = entry?.id ?? wanted;
  if (model === null) throw server.fail('engine_error', '/v1/models lists no models; name the one to use', { status });
  return { model, maxModelLen: entry?.max_model_len ?? null, listed: entry !== undefined };
}

class OpenaiEngine implements Engine {
  private readonly server: EngineServer;
  private readonly spec: EngineSpec;
  private readonly found: Model;
  /** What the API has refused as not known to it. */
  private readonly unknown = new Set<OptionalField>();
  /** Sampling that a task fixed in vain. */
  private readonly dropped = new Set<string>();
  private readonly calls: CallHealth;
  private version: string | null = null;

  constructor(server: EngineServer, spec: EngineSpec, found: Model) {
    this.server = server;
    this.calls = new CallHealth(server.engineId);
    this.spec = spec;
    this.found = found;
  }

  info(): EngineInfo {
    const { server, spec, found } = this;
    return {
      engine_id: server.engineId,
      kind: 'openai',
      base_url: spec.base_url,
      pool: spec.pool,
      model: found.model,
      server_version: null,
      max_model_len: found.maxModelLen,
      logprobs_mode: null,
      policy_version: this.version,
      healthy: this.calls.healthy,
      streaming: spec.stream === 'auto',
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilities(),
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      if (request.prompt !== null) throw this.server.fail('unsupported', 'the API takes no token ids');
      for (const field of droppedSampling(request)) this.dropped.add(field);
      const listener = this.spec.stream === 'auto' ? request.listener : undefined;
      const reply = await this.open(request, listener !== undefined, signal);
      if (listener === undefined || !isEventStream(reply)) return parseReply(await reply.read());
      const stream = new ReplyStreamReader(listener);
      await reply.each((bytes) => stream.push(bytes));
      return stream.reply();
    });
  }

  countTokens(): Promise<number> {
    return Promise.reject(this.server.fail('unsupported', 'the API does not count tokens'));
  }

  render(): Promise<Int32Array> {
    return Promise.reject(this.server.fail('unsupported', 'the API does not render messages'));
  }

  detokenize(): Promise<string> {
    return Promise.reject(this.server.fail('unsupported', 'the API knows no token ids'));
  }

  pause(): Promise<void> {
    return Promise.reject(this.server.fail('unsupported', 'the API cannot be paused'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.server.fail('unsupported', 'the API cannot be paused'));
  }

  setPolicyVersion(version: string): void {
    this.version = version;
  }

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  close(): Promise<void> {
    return this.server.close();
  }

  private capabilities(): EngineCapabilities {
    return {
      token_ids: false,
      token_input: 'none',
      version_spans: false,
      pause: false,
      abort: false,
      cache_salt: false,
      notes: [
        'no token ids: its replies are not trained on',
        ...(this.found.listed ? [] : [`/v1/models does not list ${this.found.model}`]),
        ...[...this.unknown].map((field) => `the API does not know ${field}; it is not sent`),
        ...[...this.dropped].map((field) => `the API has no field for ${field}; it is not sent`),
      ],
      template: UNKNOWN_TEMPLATE,
    };
  }

  /** Asks again without a field that the API does not know, if the reply may do without it. */
  private async open(request: GenerateRequest, stream: boolean, signal: AbortSignal): Promise<OpenReply> {
    for (;;) {
      try {
        const body = chatBody(this.found.model, request, stream, this.unknown);
        return await this.server.post('/v1/chat/completions', body, request, signal);
      } catch (error) {
        const field = unknownField(error);
        if (field === null || this.unknown.has(field) || !canDoWithout(request, field)) throw error;
        this.unknown.add(field);
      }
    }
  }
}

function unknownField(error: unknown): OptionalField | null {
  if (!FloeError.is(error) || error.code !== 'engine_rejected') return null;
  const { param, engine_code } = error.details;
  return engine_code === UNKNOWN_FIELD && isOptionalField(param) ? param : null;
}
