import { abortAfter, backoffMs, type Clock, FloeError, sleep } from '@floe-rl/core';
import type { EngineSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import { errorMessageOf, isErrorBody, parseWith } from '../chat/reply-tokens.ts';
import type { CallContext } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import { Credentials } from './credentials.ts';
import { PROTOBUF, parseJsonSample, parseProtobufSample, type SampleResponse } from './sample-response.ts';

/** The version of Tinker's SDK whose protocol this client uses. The server chooses its features by this version. */
const SDK_VERSION = '0.38.0';

/** Interval at which the session is reported to be in use. Servers end a session after some minutes without a report. */
const HEARTBEAT_MS = 10_000;

/** Time limit for creating a sampling session, for which a server may load weights. */
const SESSION_TIMEOUT_MS = 60_000;

/**
 * Time limit of one request for a result. The server answers earlier, with status 408, when the result is not ready; a request that takes
 * longer is repeated, because its connection may be lost.
 */
const POLL_TIMEOUT_MS = 45_000;

/** Maximum number of consecutive failures of requests for one result. With the pauses between them, that is about a minute. */
const MAX_POLL_FAILURES = 8;
const POLL_BACKOFF = { baseMs: 500, maxMs: 10_000 };

/** The abort reason of a request for a result after {@link POLL_TIMEOUT_MS}. */
const LATE = new FloeError('deadline_exceeded', 'the result was not ready in time');

/** Matches error messages about an overlong prompt. The API has no error code for it. */
const OVERFLOW_WORDING = /context (?:length|size|window)|maximum (?:model|sequence|context) length|prompt is too long/i;

const configSchema = z.looseObject({ pjwt_auth_enabled: z.boolean().nullish() });
const dynamicConfigSchema = z.looseObject({ sample_cancel_enabled: z.boolean().nullish() });
const capabilitiesSchema = z.looseObject({
  supported_models: z.array(
    z.looseObject({
      model_name: z.string().nullish(),
      max_context_length: z.int().min(1).nullish(),
      sampleable: z.boolean().nullish(),
    }),
  ),
});
const sessionSchema = z.looseObject({ session_id: z.string(), error_message: z.string().nullish() });
const samplingSessionSchema = z.looseObject({ sampling_session_id: z.string() });
const samplerSchema = z.looseObject({ base_model: z.string() });
const futureSchema = z.looseObject({ request_id: z.string().min(1) });
const failureSchema = z.looseObject({ error: z.string(), category: z.string().nullish() });
const pendingSchema = z.looseObject({ type: z.literal('try_again') });

/** The weights of a sampling session: saved weights (`tinker://…`) or a base model. */
export type SampledWeights = { readonly model_path: string } | { readonly base_model: string };

/** A sampling session of the server, whose weights never change. */
export type SamplingSession = { readonly id: string; readonly epoch: number; nextSeqId: number };

/** The models that a server lists. */
type ServedModel = { readonly name: string; readonly contextTokens: number | null };

/**
 * Client of a server with the API of Tinker's sampling service. It keeps a session alive, opens sampling sessions, and samples. All methods
 * reject as the methods of `Engine` do.
 */
export class TinkerService {
  readonly server: EngineServer;
  private readonly clock: Clock;
  private readonly credentials: Credentials;
  /** Whether the server has a request that stops the sampling of a reply. */
  canCancel = false;
  private session: Promise<string> | null = null;
  /** Number of sessions that were lost. A sampling session ends with the session in which it was created. */
  private epoch = 0;
  private samplingSessionCount = 0;
  private stopHeartbeats = (): void => {};
  private closed = false;

  private constructor(spec: EngineSpec, clock: Clock) {
    this.clock = clock;
    this.credentials = new Credentials(spec, clock);
    this.server = new EngineServer(spec, {
      clock,
      isOverflow: ({ message }) => OVERFLOW_WORDING.test(message),
      headersOf: ({ completionId, sessionId }) => ({ 'x-request-id': completionId, 'x-session-id': sessionId }),
      authHeaders: () => this.credentials.headers(),
    });
  }

  /** Connects to a server and reads its settings. */
  static async connect(spec: EngineSpec, clock: Clock): Promise<TinkerService> {
    const service = new TinkerService(spec, clock);
    try {
      await service.configure();
      return service;
    } catch (error) {
      await service.close();
      throw error;
    }
  }

  async models(): Promise<readonly ServedModel[]> {
    const reply = await this.server.controlGet('/api/v1/get_server_capabilities');
    if (reply.status !== 200) throw this.server.statusError(reply);
    const { supported_models: models } = parseWith(capabilitiesSchema, jsonOf(reply.body));
    return models
      .filter(({ sampleable }) => sampleable !== false)
      .flatMap(({ model_name: name, max_context_length: length }) =>
        name ? [{ name, contextTokens: length ?? null }] : [],
      );
  }

  /** Returns the name of the base model of a sampling session; `null` when the server does not report it. */
  async baseModelOf({ id }: SamplingSession): Promise<string | null> {
    await this.credentials.refresh();
    const reply = await this.server.controlGet(`/api/v1/samplers/${encodeURIComponent(id)}`);
    const parsed = samplerSchema.safeParse(jsonOf(reply.body));
    return reply.status === 200 && parsed.success ? parsed.data.base_model : null;
  }

  /** Whether a sampling session can still be used. It ends together with the session in which it was created. */
  isOpen({ epoch }: SamplingSession): boolean {
    return epoch === this.epoch;
  }

  /** Creates a sampling session for these weights. */
  async openSamplingSession(weights: SampledWeights): Promise<SamplingSession> {
    const { epoch } = this;
    try {
      const session_id = await this.liveSession();
      const sampling_session_seq_id = this.samplingSessionCount++;
      const request = { type: 'create_sampling_session', session_id, sampling_session_seq_id, ...weights };
      const path = '/api/v1/create_sampling_session';
      const { sampling_session_id: id } = await this.control(path, request, samplingSessionSchema);
      return { id, epoch, nextSeqId: 0 };
    } catch (error) {
      this.forgetIfLost(error, epoch);
      throw error;
    }
  }

  /**
   * Samples one reply. `body` is the request without the fields that identify its sampling session. When the signal aborts, the server is
   * asked to stop, if it supports that.
   */
  async sample(
    session: SamplingSession,
    body: string,
    context: CallContext | null,
    signal: AbortSignal,
  ): Promise<SampleResponse> {
    const own = JSON.stringify({ type: 'sample', sampling_session_id: session.id, seq_id: session.nextSeqId++ });
    try {
      const { request_id } = await this.authenticated(() =>
        this.server.call('/api/v1/asample', `${own.slice(0, -1)},${body.slice(1)}`, context, futureSchema, signal, {
          // States that this client waits and retries when the server answers with status 429.
          'x-tinker-sampling-backpressure': '1',
        }),
      );
      const work = (): Promise<SampleResponse> => this.result(request_id, context, signal);
      if (!this.canCancel) return await work();
      return await this.server.abortable(signal, '/api/v1/cancel_future', JSON.stringify({ request_id }), work);
    } catch (error) {
      this.forgetIfLost(error, session.epoch);
      throw error;
    }
  }

  async close(): Promise<void> {
    this.closed = true;
    this.stopHeartbeats();
    await Promise.all([this.server.close(), this.credentials.close()]);
  }

  private async configure(): Promise<void> {
    const request = { sdk_version: SDK_VERSION };
    const config = await this.optional('/api/v1/client/config', request, configSchema);
    if (config?.pjwt_auth_enabled === true) await this.credentials.startExchanging();
    const dynamic = await this.optional('/api/v1/client/dynamic_config', request, dynamicConfigSchema);
    this.canCancel = dynamic?.sample_cancel_enabled === true;
  }

  /** Reads settings from an endpoint that some servers lack; `null` when the server lacks it. */
  private async optional<T extends z.ZodType>(path: string, body: object, schema: T): Promise<z.output<T> | null> {
    const reply = await this.server.controlPost(path, JSON.stringify(body));
    if (reply.status === 404 || reply.status === 405) return null;
    if (reply.status !== 200) throw this.server.statusError(reply);
    return parseWith(schema, jsonOf(reply.body));
  }

  /** Returns the id of the session, which is created when there is none. */
  private liveSession(): Promise<string> {
    if (this.session !== null) return this.session;
    const { epoch } = this;
    this.session = this.createSession();
    this.session.catch(() => this.forgetSession(epoch));
    return this.session;
  }

  private async createSession(): Promise<string> {
    const request = { type: 'create_session', tags: ['floe'], user_metadata: {}, sdk_version: SDK_VERSION };
    const { session_id, error_message } = await this.control('/api/v1/create_session', request, sessionSchema);
    if (error_message) throw this.server.error('engine_error', error_message);
    this.stopHeartbeats();
    this.scheduleHeartbeat(session_id);
    return session_id;
  }

  private scheduleHeartbeat(sessionId: string): void {
    if (this.closed) return;
    const { epoch } = this;
    this.stopHeartbeats = this.clock.schedule(HEARTBEAT_MS, () => {
      this.sendHeartbeat(sessionId)
        .catch((error: unknown) => this.forgetIfLost(error, epoch))
        .finally(() => {
          if (epoch === this.epoch) this.scheduleHeartbeat(sessionId);
        });
    });
  }

  private async sendHeartbeat(sessionId: string): Promise<void> {
    await this.credentials.refresh();
    const body = JSON.stringify({ type: 'session_heartbeat', session_id: sessionId });
    const reply = await this.server.controlPost('/api/v1/session_heartbeat', body);
    if (reply.status !== 200) throw this.server.statusError(reply);
  }

  /** Drops the session when the error shows that the server no longer knows it. The next call then creates another session. */
  private forgetIfLost(error: unknown, epoch: number): void {
    const status = FloeError.is(error) ? error.details.status : undefined;
    if (status === 404 || status === 410) this.forgetSession(epoch);
  }

  private forgetSession(epoch: number): void {
    if (epoch !== this.epoch) return;
    this.epoch++;
    this.session = null;
    this.stopHeartbeats();
  }

  /** Sends a request that belongs to no call and parses its reply. */
  private async control<T extends z.ZodType>(path: string, request: object, schema: T): Promise<z.output<T>> {
    const send = (signal: AbortSignal): Promise<z.output<T>> =>
      this.server.call(path, JSON.stringify(request), null, schema, signal);
    return this.authenticated(() => this.server.withDeadline(SESSION_TIMEOUT_MS, send, path));
  }

  /** Sends a request with a valid token. When the server refuses the token nevertheless, the request is repeated with a new token. */
  private async authenticated<T>(send: () => Promise<T>): Promise<T> {
    await this.credentials.refresh();
    try {
      return await send();
    } catch (error) {
      if (!FloeError.is(error) || error.details.status !== 401 || !this.credentials.discard()) throw error;
      await this.credentials.refresh();
      return send();
    }
  }

  /** Waits for the result of a sampling request. Failures of the connection do not end the wait, because the server keeps the result. */
  private async result(requestId: string, context: CallContext | null, signal: AbortSignal): Promise<SampleResponse> {
    for (let failures = 0; ; ) {
      try {
        const response = await this.poll(requestId, context, signal);
        if (response !== null) return response;
        failures = 0;
      } catch (error) {
        if (signal.aborted || !isPassing(error) || ++failures > MAX_POLL_FAILURES) throw error;
        await sleep(this.clock, backoffMs(POLL_BACKOFF, failures), signal);
      }
    }
  }

  /** Requests the result of a sampling request; `null` when it is not ready. */
  private async poll(
    requestId: string,
    context: CallContext | null,
    signal: AbortSignal,
  ): Promise<SampleResponse | null> {
    const limit = abortAfter(this.clock, POLL_TIMEOUT_MS, () => LATE, signal);
    try {
      return await this.authenticated(() => this.requestResult(requestId, context, limit.signal));
    } catch (error) {
      const status = FloeError.is(error) ? error.details.status : undefined;
      if (error === LATE || status === 408) return null;
      throw this.pollError(error);
    } finally {
      limit.release();
    }
  }

  private async requestResult(
    requestId: string,
    context: CallContext | null,
    signal: AbortSignal,
  ): Promise<SampleResponse | null> {
    const body = JSON.stringify({ request_id: requestId, allow_metadata_only: false });
    const reply = await this.server.post('/api/v1/retrieve_future', body, context, signal, { accept: PROTOBUF });
    const type = String(reply.headers['content-type'] ?? '');
    const content = await reply.read();
    return type.startsWith(PROTOBUF) ? parseProtobufSample(content) : this.jsonResult(content);
  }

  private jsonResult(content: Buffer): SampleResponse | null {
    const json = jsonOf(content);
    if (pendingSchema.safeParse(json).success) return null;
    if (!isErrorBody(json)) return parseJsonSample(content);
    const failure = failureSchema.safeParse(json);
    const message = errorMessageOf(json) ?? 'the request failed';
    if (!failure.success || failure.data.category !== 'user') throw this.server.error('engine_error', message);
    throw new FloeError('engine_rejected', message, {
      engine_id: this.server.engineId,
      ...(OVERFLOW_WORDING.test(message) ? { context_overflow: true } : {}),
    });
  }

  /** Returns the error of the sampled reply for a failed request for its result. */
  private pollError(error: unknown): unknown {
    if (!FloeError.is(error)) return error;
    const { status } = error.details;
    // The server has lost the request and its result, so the reply can be sampled again.
    if (status === 410) return this.server.error('engine_unavailable', error.message, { status });
    // The request was accepted earlier, so status 400 means that sampling failed.
    if (status === 400) return this.server.error('engine_error', error.message, { status });
    return error;
  }
}

/** Whether a request for a result failed for a temporary reason, so that it should be repeated. */
function isPassing(error: unknown): boolean {
  if (!FloeError.is(error)) return false;
  const { code, details } = error;
  const { status } = details;
  if (typeof status === 'number') return status === 429 || status >= 500;
  return code === 'engine_unavailable' || details.broken_off === true;
}
