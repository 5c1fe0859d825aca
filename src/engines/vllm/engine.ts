import { Pool } from 'undici';
import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { EngineCapabilities, EngineInfo, EngineSpec, VersionSpan } from '../../schema/index.ts';
import type { Engine, EngineNotice, GenerateReply, GenerateRequest } from '../engine.ts';
import { callEngine, type HttpReply, type OpenReply, openReply } from '../http.ts';
import { IdScanner } from '../id-scan.ts';
import { UNKNOWN_TEMPLATE } from '../template-probe.ts';
import { errorMessage, type ParsedReply } from '../record.ts';
import { parseReply } from './reply.ts';
import { chatBody, tokenizeBody } from './request.ts';
import { ReplyStreamReader } from './stream.ts';
import { EngineVersions } from '../versions.ts';

/** uvicorn closes idle connections after 5 s; a request on a connection that is being closed would be lost. */
const KEEP_ALIVE_MS = 4_000;

/** An engine that does not accept a connection for this long is not there. */
const CONNECT_TIMEOUT_MS = 5_000;

/** Start-up and version look-ups are small; one that hangs must not hold anything up. */
const CONTROL_TIMEOUT_MS = 10_000;

const modelsSchema = z.looseObject({
  data: z.array(z.looseObject({ id: z.string(), max_model_len: z.int().nullish() })).min(1),
});
const countSchema = z.looseObject({ count: z.int().min(0) });
const rejectionSchema = z.looseObject({ error: z.looseObject({ param: z.string().nullish() }) });

/** vLLM has no code for an overlong prompt; before it named the parameter, only the wording told. */
const CONTEXT_WORDING = /maximum context length|maximum model length|max_model_len|longer than the maximum/i;
const CONTEXT_PARAM = 'input_tokens';

const CHAT_ONLY: EngineCapabilities = {
  token_ids: true,
  token_input: 'none',
  version_spans: false,
  pause: false,
  abort: false,
  cache_salt: false,
  notes: [],
  template: UNKNOWN_TEMPLATE,
};

export type VllmDeps = { readonly clock: Clock; readonly notice?: EngineNotice };

/**
 * A vLLM server. Rejects with `engine_unavailable` when it cannot be reached, `engine_error` when it does not serve the
 * model that `spec` names.
 */
export async function createVllmEngine(spec: EngineSpec, deps: VllmDeps): Promise<Engine> {
  const base = new URL(spec.base_url);
  const pool = new Pool(base.origin, {
    // A reply takes as long as it takes; deadlines come with the signal.
    headersTimeout: 0,
    bodyTimeout: 0,
    connections: null,
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MS,
    connect: { timeout: CONNECT_TIMEOUT_MS },
  });
  const engineId = spec.engine_id ?? engineIdOf(base);
  const prefix = base.pathname.replace(/\/+$/, '');
  try {
    const model = await findModel(pool, engineId, prefix, spec.model);
    const versions = new EngineVersions(deps.clock, () =>
      callEngine(pool, engineId, {
        method: 'GET',
        path: `${prefix}/weight_info`,
        signal: AbortSignal.timeout(CONTROL_TIMEOUT_MS),
      }),
    );
    await versions.current();
    return new VllmEngine({ pool, engineId, prefix, spec, versions, notice: deps.notice ?? (() => {}), ...model });
  } catch (error) {
    await pool.destroy();
    throw error;
  }
}

function engineIdOf(base: URL): string {
  const port = base.port || (base.protocol === 'https:' ? '443' : '80');
  return `${base.hostname}-${port}${base.pathname}`
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/^[^A-Za-z0-9]+|-+$/g, '');
}

type Model = { readonly model: string; readonly maxModelLen: number | null };

async function findModel(pool: Pool, engineId: string, prefix: string, wanted: string | null): Promise<Model> {
  const reply = await callEngine(pool, engineId, {
    method: 'GET',
    path: `${prefix}/v1/models`,
    signal: AbortSignal.timeout(CONTROL_TIMEOUT_MS),
  });
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  if (reply.status !== 200 || !parsed.success) {
    throw new FloeError(
      'engine_error',
      `engine ${engineId}: /v1/models answered ${reply.status} without a model list`,
      {
        engine_id: engineId,
      },
    );
  }
  const { data } = parsed.data;
  const found = wanted === null ? data[0] : data.find((entry) => entry.id === wanted);
  if (found === undefined) {
    const served = data.map((entry) => entry.id).join(', ');
    throw new FloeError('engine_error', `engine ${engineId} does not serve ${wanted}, but ${served}`, {
      engine_id: engineId,
    });
  }
  return { model: found.id, maxModelLen: found.max_model_len ?? null };
}

function jsonOf(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'));
  } catch {
    return null;
  }
}

type Parts = Model & {
  readonly pool: Pool;
  readonly engineId: string;
  readonly prefix: string;
  readonly spec: EngineSpec;
  readonly versions: EngineVersions;
  readonly notice: EngineNotice;
};

class VllmEngine implements Engine {
  private readonly parts: Parts;
  private readonly scanner = new IdScanner();
  private inflight = 0;
  private healthy = true;
  /** Once a stream has lost ids, the next would as well. */
  private losesIds = false;

  constructor(parts: Parts) {
    this.parts = parts;
  }

  info(): EngineInfo {
    const { engineId, spec, model, maxModelLen, versions } = this.parts;
    return {
      engine_id: engineId,
      kind: 'vllm',
      base_url: spec.base_url,
      pool: spec.pool,
      model,
      server_version: null,
      max_model_len: maxModelLen,
      logprobs_mode: spec.logprobs_mode,
      policy_version: versions.last,
      healthy: this.healthy,
      streaming: this.streaming,
      inflight: this.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: CHAT_ONLY,
    };
  }

  private get streaming(): boolean {
    return this.parts.spec.stream === 'auto' && !this.losesIds;
  }

  async generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.tracked(async () => {
      const versionBefore = this.parts.versions.current();
      const parsed = await this.sample(request, signal);
      return {
        ...parsed,
        logprobsMode: this.parts.spec.logprobs_mode,
        versionSpans: parsed.versionSpans ?? (await this.oneSpan(parsed, await versionBefore)),
      };
    });
  }

  async countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.tracked(async () => {
      const reply = await this.post('/tokenize', tokenizeBody(this.parts.model, request), request, signal);
      const parsed = countSchema.safeParse(jsonOf(await reply.read()));
      if (!parsed.success) throw this.fail('engine_error', '/tokenize answered without a count');
      return parsed.data.count;
    });
  }

  render(): Promise<Int32Array> {
    return Promise.reject(new FloeError('unsupported', 'rendering'));
  }

  detokenize(): Promise<string> {
    return Promise.reject(new FloeError('unsupported', 'detokenizing'));
  }

  pause(): Promise<void> {
    return Promise.reject(new FloeError('unsupported', 'pausing'));
  }

  resume(): Promise<void> {
    return Promise.reject(new FloeError('unsupported', 'pausing'));
  }

  setPolicyVersion(): void {}

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  async close(): Promise<void> {
    if (!this.parts.pool.destroyed) await this.parts.pool.destroy();
  }

  private async tracked<T>(work: () => Promise<T>): Promise<T> {
    this.inflight++;
    try {
      const result = await work();
      this.healthy = true;
      return result;
    } catch (error) {
      if (FloeError.is(error)) this.healthy = error.code !== 'engine_unavailable' && error.code !== 'engine_error';
      throw error;
    } finally {
      this.inflight--;
    }
  }

  /**
   * Harnesses ask for bounds such as 32,000 tokens whatever the model; vLLM refuses a bound that does not fit behind the
   * prompt instead of lowering it. Without a bound it takes the room there is, which is then less than what was asked for.
   */
  private async sample(request: GenerateRequest, signal: AbortSignal): Promise<ParsedReply> {
    const { maxModelLen } = this.parts;
    const hopeless = request.maxTokens !== null && maxModelLen !== null && request.maxTokens >= maxModelLen;
    const maxTokens = hopeless ? null : request.maxTokens;
    try {
      return await this.complete(request, maxTokens, signal);
    } catch (error) {
      if (maxTokens === null || !FloeError.is(error) || error.details.context_overflow !== true) throw error;
      return await this.complete(request, null, signal);
    }
  }

  private async complete(
    request: GenerateRequest,
    maxTokens: number | null,
    signal: AbortSignal,
  ): Promise<ParsedReply> {
    const listener = this.streaming ? request.listener : undefined;
    const body = chatBody(this.parts.model, request, maxTokens, listener !== undefined);
    const reply = await this.post('/v1/chat/completions', body, request, signal);
    if (listener === undefined || !isEventStream(reply)) return parseReply(await reply.read(), request, this.scanner);
    const stream = new ReplyStreamReader(request, this.scanner, listener);
    try {
      await reply.each((bytes) => stream.push(bytes));
      return stream.reply();
    } catch (error) {
      if (FloeError.is(error) && error.details.lost_ids === true) this.giveUpStreams(error);
      throw error;
    }
  }

  private giveUpStreams(error: FloeError): void {
    if (this.losesIds) return;
    this.losesIds = true;
    const { engineId, notice } = this.parts;
    notice('a streamed reply has lost token ids; replies of this engine arrive whole from now on', {
      engine_id: engineId,
      reason: error.message,
    });
  }

  /** Rejects with what the status says, unless it is 200. */
  private async post(path: string, body: string, request: GenerateRequest, signal: AbortSignal): Promise<OpenReply> {
    const { pool, engineId, prefix } = this.parts;
    const reply = await openReply(pool, engineId, {
      method: 'POST',
      path: prefix + path,
      headers: {
        'content-type': 'application/json',
        'x-request-id': request.completionId,
        // Routers send all calls of a session to the server that holds its prefix.
        'x-session-id': request.sessionId,
      },
      body,
      signal,
    });
    if (reply.status === 200) return reply;
    throw this.refused({ status: reply.status, headers: reply.headers, body: await reply.read() });
  }

  private refused(reply: HttpReply): FloeError {
    const json = jsonOf(reply.body);
    const message = errorMessage(json) ?? `status ${reply.status}`;
    const facts = { status: reply.status };
    if (reply.status === 503 || reply.status === 429) {
      return this.fail('engine_unavailable', message, { ...facts, retry_after_ms: retryAfterMs(reply.headers) });
    }
    // The URL and the model are floe's own, so a server that does not know or trust us is no fault of the request.
    const misplaced = reply.status === 401 || reply.status === 403 || reply.status === 404;
    if (misplaced || reply.status >= 500 || reply.status < 400) return this.fail('engine_error', message, facts);
    const parsed = rejectionSchema.safeParse(json);
    const overflow = (parsed.success && parsed.data.error.param === CONTEXT_PARAM) || CONTEXT_WORDING.test(message);
    // The wording stays the engine's own: harnesses recognise an overlong prompt by it.
    return new FloeError('engine_rejected', message, {
      ...facts,
      engine_id: this.parts.engineId,
      ...(overflow ? { context_overflow: true } : {}),
    });
  }

  private fail(code: 'engine_error' | 'engine_unavailable', what: string, details: object = {}): FloeError {
    const { engineId } = this.parts;
    return new FloeError(code, `engine ${engineId}: ${what}`, { ...details, engine_id: engineId });
  }

  /** Without spans from the server: one version if it was the same before and after, otherwise nobody knows. */
  private async oneSpan(reply: ParsedReply, before: string | null): Promise<VersionSpan[]> {
    const after = await this.parts.versions.afterReply();
    return [{ version: before === after ? before : null, start: 0, end: reply.responseIds.length }];
  }
}

function retryAfterMs(headers: HttpReply['headers']): number | null {
  const seconds = Number(headers['retry-after']);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
}

/** A server that does not stream answers whole. */
function isEventStream(reply: OpenReply): boolean {
  return String(reply.headers['content-type'] ?? '').startsWith('text/event-stream');
}
