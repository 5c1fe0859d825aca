import { engineIdOf, FloeError, type VirtualClock } from '@floe-rl/core';
import {
  type EngineCapabilities,
  type EngineInfo,
  type EngineSpec,
  engineSpecSchema,
  type PauseMode,
  samplingSchema,
} from '@floe-rl/core/schema';
import type { Engine, GenerateReply, GenerateRequest, RenderRequest } from '../../../src/engines/engine.ts';
import { UNKNOWN_TEMPLATE } from '../../../src/engines/template-probe.ts';

export const REQUEST: GenerateRequest = {
  completionId: 'cpl_1',
  sessionId: 'ses_1',
  pool: 'default',
  prompt: null,
  resumeFrom: null,
  policyVersion: null,
  messageTexts: [],
  tools: [],
  toolsText: '[]',
  toolChoice: null,
  parallelToolCalls: null,
  responseFormat: null,
  sampling: samplingSchema.parse({}),
  maxTokens: null,
  stop: [],
  seed: null,
};

/**
 * Makes a reply with these token ids to a prompt of the ids 1, 2 and 3. Each id has the log-probability -0.5 and was sampled by the policy
 * version `version`.
 */
export function replyOf(ids: readonly number[], over: Partial<GenerateReply> = {}, version = 'v1'): GenerateReply {
  return {
    promptIds: Int32Array.of(1, 2, 3),
    responseIds: Int32Array.from(ids),
    responseLogprobs: new Float32Array(ids.length).fill(-0.5),
    versionSpans: [{ version, start: 0, end: ids.length }],
    routedExperts: null,
    logprobsMode: 'processed',
    message: { role: 'assistant', content: ids.map((id) => `<${id}>`).join('') },
    finishReason: 'stop',
    stop: null,
    usage: { prompt_tokens: 3, completion_tokens: ids.length, cached_tokens: null },
    ...over,
  };
}

export const unavailable = (details: object = {}): FloeError =>
  new FloeError('engine_unavailable', 'gone', { ...details });

export const never = (): AbortSignal => new AbortController().signal;

export type ToyFacts = {
  readonly capabilities?: Partial<EngineCapabilities>;
  readonly fingerprint?: string | null;
  readonly model?: string;
  readonly version?: string | null;
  readonly maxModelLen?: number | null;
  readonly metricsText?: string | null;
};

/** A call that a toy engine has received and not answered yet. */
export type Pending = {
  readonly request: GenerateRequest;
  readonly signal: AbortSignal;
  readonly answer: (reply?: GenerateReply) => void;
  readonly fail: (error: unknown) => void;
};

/** In-memory engine for tests of pools. It answers as the test specifies, and records its requests. */
export class ToyEngine implements Engine {
  readonly requests: GenerateRequest[] = [];
  readonly orders: string[] = [];
  readonly versions: string[] = [];
  readonly pending: Pending[] = [];
  readonly spec: EngineSpec;
  facts: ToyFacts;
  healthy = true;
  closed = 0;
  /** Number of calls of `weightsMayHaveChanged`. */
  weightChanges = 0;
  renders = 0;
  /** Function that answers a call. When it is `null`, calls stay in `pending` until the test answers them. */
  onCall: ((request: GenerateRequest, signal: AbortSignal) => Promise<GenerateReply>) | null;
  onOrder: (order: string, signal: AbortSignal) => Promise<void> = async () => {};

  constructor(id: string, onCall: ToyEngine['onCall'] = async () => replyOf([7]), facts: ToyFacts = {}) {
    this.spec = specOf(id);
    this.onCall = onCall;
    this.facts = facts;
  }

  /** Makes an engine that leaves its calls pending until the test answers them. */
  static held(id: string, facts: ToyFacts = {}): ToyEngine {
    return new ToyEngine(id, null, facts);
  }

  get calls(): number {
    return this.requests.length;
  }

  info(): EngineInfo {
    const { capabilities, fingerprint = null, model, version = null, maxModelLen = 100 } = this.facts;
    return {
      engine_id: this.spec.engine_id ?? engineIdOf(this.spec.base_url),
      kind: this.spec.kind,
      base_url: this.spec.base_url,
      pool: this.spec.pool,
      model: model ?? 'policy',
      server_version: null,
      max_model_len: maxModelLen,
      logprobs_mode: 'processed',
      policy_version: version,
      healthy: this.healthy,
      streaming: true,
      inflight: this.pending.length,
      max_concurrency: this.spec.max_concurrency,
      capabilities: {
        token_ids: true,
        token_input: 'none',
        version_spans: false,
        pause: false,
        abort: false,
        cache_salt: false,
        notes: [],
        template: { ...UNKNOWN_TEMPLATE, fingerprint },
        ...capabilities,
      },
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    this.requests.push(request);
    if (this.onCall !== null) return this.onCall(request, signal);
    return new Promise((resolve, reject) => {
      const done = (): void => {
        this.pending.splice(this.pending.indexOf(call), 1);
        signal.removeEventListener('abort', onAbort);
      };
      const call: Pending = {
        request,
        signal,
        answer: (reply = replyOf([7])) => {
          done();
          resolve(reply);
        },
        fail: (error) => {
          done();
          reject(error);
        },
      };
      const onAbort = (): void => call.fail(signal.reason);
      signal.addEventListener('abort', onAbort, { once: true });
      this.pending.push(call);
    });
  }

  async countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return (await this.generate(request, signal)).responseIds.length;
  }

  async render(request: RenderRequest): Promise<Int32Array> {
    this.renders++;
    return Int32Array.from(request.messageTexts, (text) => text.length);
  }

  async detokenize(ids: Int32Array): Promise<string> {
    return [...ids].map((id) => `<${id}>`).join('');
  }

  pause(mode: PauseMode, signal: AbortSignal): Promise<void> {
    this.orders.push(mode);
    return this.onOrder(mode, signal);
  }

  resume(signal: AbortSignal): Promise<void> {
    this.orders.push('resume');
    return this.onOrder('resume', signal);
  }

  setPolicyVersion(version: string): void {
    this.versions.push(version);
  }

  async policyVersion(): Promise<string | null> {
    return this.facts.version ?? this.versions.at(-1) ?? null;
  }

  weightsMayHaveChanged(): void {
    this.weightChanges++;
  }

  async metrics(): Promise<string | null> {
    return this.facts.metricsText ?? null;
  }

  async close(): Promise<void> {
    this.closed++;
  }
}

export function specOf(id: string, over: Partial<EngineSpec> = {}): EngineSpec {
  return { ...engineSpecSchema.parse({ engine_id: id, base_url: `http://${id}.example:8000` }), ...over };
}

/** The servers to which pools in tests connect, keyed by engine id. A test can replace the server of an id. */
export class ToyNetwork {
  readonly connections: ToyEngine[] = [];
  private readonly servers = new Map<string, (spec: EngineSpec) => Promise<ToyEngine>>();

  put(id: string, server: ((spec: EngineSpec) => ToyEngine | Promise<ToyEngine>) | ToyEngine): void {
    this.servers.set(id, async (spec) => {
      const engine = typeof server === 'function' ? await server(spec) : server;
      Object.assign(engine, { spec });
      return engine;
    });
  }

  readonly connect = async (spec: EngineSpec): Promise<Engine> => {
    const server = this.servers.get(spec.engine_id ?? '');
    if (server === undefined) throw unavailable();
    const engine = await server(spec);
    this.connections.push(engine);
    return engine;
  };
}

/** Waits until all queued microtasks and immediates have run. */
export async function settle(): Promise<void> {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
}

/** Advances the virtual clock in small steps until `work` has settled. */
export async function through<T>(clock: VirtualClock, work: Promise<T>): Promise<T> {
  let done = false;
  const end = (): void => {
    done = true;
  };
  work.then(end, end);
  while (!done) {
    clock.advance(50);
    await new Promise((resolve) => setImmediate(resolve));
  }
  return work;
}
