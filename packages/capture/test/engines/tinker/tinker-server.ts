import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { z } from 'zod';

/**
 * The requests of Tinker's API that an engine sends, with exactly the fields that the models of its SDK 0.38.0 declare. The service refuses
 * other fields.
 */
const session = { type: z.literal('create_session'), tags: z.array(z.string()), sdk_version: z.string() };
const samplingParams = z.strictObject({
  max_tokens: z.int().min(1),
  seed: z.int().min(0).optional(),
  stop: z.union([z.string(), z.array(z.string()), z.array(z.int())]).optional(),
  temperature: z.number(),
  top_k: z.int().optional(),
  top_p: z.number().optional(),
});
const sampleSchema = z.strictObject({
  type: z.literal('sample'),
  num_samples: z.literal(1),
  prompt: z.strictObject({
    chunks: z.array(z.strictObject({ type: z.literal('encoded_text'), tokens: z.array(z.int().min(0)).min(1) })),
  }),
  sampling_params: samplingParams.partial({ temperature: true }),
  sampling_session_id: z.string(),
  seq_id: z.int().min(0),
  prompt_logprobs: z.boolean().optional(),
});
const SCHEMAS: Readonly<Record<string, z.ZodType>> = {
  '/api/v1/client/config': z.strictObject({ sdk_version: z.string() }),
  '/api/v1/client/dynamic_config': z.strictObject({ sdk_version: z.string() }),
  '/api/v1/auth/token': z.strictObject({}),
  '/api/v1/create_session': z.strictObject({ ...session, user_metadata: z.record(z.string(), z.unknown()) }),
  '/api/v1/session_heartbeat': z.strictObject({ type: z.literal('session_heartbeat'), session_id: z.string() }),
  '/api/v1/create_sampling_session': z.strictObject({
    type: z.literal('create_sampling_session'),
    session_id: z.string(),
    sampling_session_seq_id: z.int(),
    base_model: z.string().optional(),
    model_path: z.string().startsWith('tinker://').optional(),
  }),
  '/api/v1/asample': sampleSchema,
  '/api/v1/retrieve_future': z.strictObject({ request_id: z.string(), allow_metadata_only: z.boolean() }),
  '/api/v1/cancel_future': z.strictObject({ request_id: z.string() }),
};

/** A sampling request as the server received it, with the weights of its sampling session. */
export type SampleRequest = z.output<typeof sampleSchema> & {
  readonly weights: string;
  readonly headers: IncomingHttpHeaders;
  /** Aborts when the request is cancelled. */
  readonly signal: AbortSignal;
};

/** What a scripted model samples. A field that is `undefined` is left out of the reply. */
export type Sampled = {
  tokens: number[];
  logprobs?: number[] | undefined;
  stop_reason: 'stop' | 'length';
  prompt_logprobs?: (number | null)[] | undefined;
  prompt_cache_hit_tokens?: number;
};

type TinkerCall = {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: Record<string, unknown>;
  readonly response: ServerResponse;
};
type Answer = { status?: number; body?: unknown; headers?: Record<string, string> };

/**
 * A loopback server with the API of Tinker's sampling service, written from the models and the client of its SDK. It refuses requests that
 * the SDK would not send. Results are sent as protobuf messages, as the service does, or as JSON when `json` is set.
 */
export class TinkerServer {
  readonly calls: TinkerCall[] = [];
  readonly samples: SampleRequest[] = [];
  json = false;
  key: string | null = null;
  /** The token for which the key must be exchanged; `null` when the key itself is accepted. */
  token: string | null = null;
  canCancel = false;
  models: object[] = [{ model_name: 'toy/base', max_context_length: 4096, trainable: true, sampleable: true }];
  /** Paths of saved weights that exist. */
  saved = new Set<string>();
  /** Function that may replace an answer before it is sent; when it returns `null`, no answer is sent. */
  intercept: (call: TinkerCall) => Answer | null | undefined = () => undefined;
  sample: (request: SampleRequest) => Sampled | Promise<Sampled>;
  private readonly server: Server;
  private readonly sessions = new Set<string>();
  private readonly samplers = new Map<string, string>();
  private readonly futures = new Map<string, { result: Promise<Sampled>; cancel: AbortController }>();
  private serial = 0;

  constructor(sample: TinkerServer['sample']) {
    this.sample = sample;
    this.server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        const body = (text === '' ? {} : JSON.parse(text)) as Record<string, unknown>;
        void this.handle({ path: request.url ?? '', headers: request.headers, body, response });
      });
    });
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  requestsTo(path: string): TinkerCall[] {
    return this.calls.filter((call) => call.path === path);
  }

  /** Forgets all sessions, as the service does with sessions that were not used for some minutes. */
  endSessions(): void {
    this.sessions.clear();
    this.samplers.clear();
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.server.listen(0, '127.0.0.1', resolve));
  }

  close(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.server.close(() => resolve());
    });
    this.server.closeAllConnections();
    return closed;
  }

  private async handle(call: TinkerCall): Promise<void> {
    this.calls.push(call);
    const own = this.intercept(call);
    if (own === null) return;
    const answer = own ?? (await this.answer(call));
    const { status = 200, body = {}, headers } = answer;
    const content = Buffer.isBuffer(body) ? body : JSON.stringify(body);
    const type = Buffer.isBuffer(body) ? 'application/x-protobuf' : 'application/json';
    call.response.writeHead(status, { 'content-type': type, ...headers });
    call.response.end(content);
  }

  private async answer(call: TinkerCall): Promise<Answer> {
    const { path, headers, body } = call;
    const takesKey = path === '/api/v1/auth/token' || path === '/api/v1/client/config';
    const expected = takesKey ? this.key : this.secret;
    if (expected !== null && headers['x-api-key'] !== expected) {
      return { status: 401, body: { detail: 'invalid key' }, headers: { 'www-authenticate': 'error="invalid_token"' } };
    }
    const parsed = SCHEMAS[path]?.safeParse(body);
    if (parsed?.success === false) return { status: 422, body: { detail: z.prettifyError(parsed.error) } };
    if (path.startsWith('/api/v1/samplers/')) return this.sampler(path.slice('/api/v1/samplers/'.length));
    switch (path) {
      case '/api/v1/client/config':
        return { body: { pjwt_auth_enabled: this.token !== null } };
      case '/api/v1/client/dynamic_config':
        return { body: { sample_cancel_enabled: this.canCancel } };
      case '/api/v1/auth/token':
        return { body: { jwt: this.token } };
      case '/api/v1/get_server_capabilities':
        return { body: { supported_models: this.models } };
      case '/api/v1/create_session':
        return { body: { session_id: this.newId(this.sessions) } };
      case '/api/v1/session_heartbeat':
        return this.sessions.has(String(body.session_id)) ? {} : notFound('Session');
      case '/api/v1/create_sampling_session':
        return this.createSampler(body);
      case '/api/v1/asample':
        return this.submit(sampleSchema.parse(body), headers);
      case '/api/v1/retrieve_future':
        return this.retrieve(String(body.request_id));
      case '/api/v1/cancel_future':
        this.futures.get(String(body.request_id))?.cancel.abort();
        return {};
      default:
        return { status: 404, body: { detail: 'Not Found' } };
    }
  }

  private get secret(): string | null {
    return this.token ?? this.key;
  }

  private newId(ids: Set<string>): string {
    const id = `id-${++this.serial}`;
    ids.add(id);
    return id;
  }

  private createSampler(body: Record<string, unknown>): Answer {
    if (!this.sessions.has(String(body.session_id))) return notFound('Session');
    const { model_path: path, base_model: base } = body;
    const isKnown = path === undefined ? base === 'toy/base' : this.saved.has(String(path));
    if (!isKnown) return { status: 404, body: { detail: `Model ${String(path ?? base)} not found` } };
    const id = `sampling-${++this.serial}`;
    this.samplers.set(id, String(path ?? base));
    return { body: { type: 'create_sampling_session', sampling_session_id: id } };
  }

  private sampler(id: string): Answer {
    if (!this.samplers.has(id)) return notFound('Sampler');
    return { body: { sampler_id: id, base_model: 'toy/base', model_path: null } };
  }

  private submit(request: z.output<typeof sampleSchema>, headers: IncomingHttpHeaders): Answer {
    const weights = this.samplers.get(request.sampling_session_id);
    if (weights === undefined) return notFound('Sampling session');
    const cancel = new AbortController();
    const sample = { ...request, weights, headers, signal: cancel.signal };
    this.samples.push(sample);
    const id = `future-${++this.serial}`;
    const result = Promise.resolve(this.sample(sample));
    result.catch(() => {});
    this.futures.set(id, { result, cancel });
    return { body: { request_id: id, sample_sequence_ids: [`${request.sampling_session_id}:${request.seq_id}`] } };
  }

  private async retrieve(id: string): Promise<Answer> {
    const future = this.futures.get(id);
    if (future === undefined) return notFound('Future');
    try {
      const sampled = await future.result;
      if (!this.json) return { body: protobufOf(sampled) };
      const { tokens, logprobs, stop_reason, ...rest } = sampled;
      return { body: { type: 'sample', sequences: [{ tokens, logprobs, stop_reason }], ...rest } };
    } catch (error) {
      return { status: 400, body: { detail: String(error) } };
    }
  }
}

function notFound(what: string): Answer {
  return { status: 404, body: { detail: `${what} not found` } };
}

/** Encodes a result as the message `SampleResponse` of the schema in Tinker's SDK. */
export function protobufOf({ tokens, logprobs, stop_reason, prompt_logprobs, ...rest }: Sampled): Buffer {
  const sequence = Buffer.concat([
    // The enumeration's value 0 is left out, as encoders of protobuf do.
    ...(stop_reason === 'length' ? [varint((1 << 3) | 0), varint(1)] : []),
    ...bytesField(2, Buffer.from(Int32Array.from(tokens).buffer)),
    ...(logprobs === undefined ? [] : bytesField(3, floats(logprobs))),
  ]);
  const cached = rest.prompt_cache_hit_tokens ?? 0;
  return Buffer.concat([
    ...bytesField(1, sequence),
    ...(prompt_logprobs === undefined ? [] : bytesField(2, floats(prompt_logprobs))),
    ...(cached === 0 ? [] : [varint((4 << 3) | 0), varint(cached)]),
  ]);
}

export function bytesField(number: number, bytes: Buffer): Buffer[] {
  return [varint((number << 3) | 2), varint(bytes.length), bytes];
}

function floats(values: readonly (number | null)[]): Buffer {
  return Buffer.from(Float32Array.from(values, (value) => value ?? Number.NaN).buffer);
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) bytes.push((rest % 0x80) + 0x80);
  return Buffer.from([...bytes, rest]);
}
