import { FloeError } from '@floe-rl/core';
import {
  type EngineSpec,
  engineKindSchema,
  type LogprobsMode,
  type PauseMode,
  type Sampling,
} from '@floe-rl/core/schema';

/** The parameters of sampling that an engine may support. `max_tokens` and `seed` are separate fields of a request. */
export type SamplingParameter = Exclude<keyof Sampling, 'max_tokens' | 'seed'>;

/** Request to sample a reply to a prompt of token ids. */
export type SampleRequest = {
  /** Id of the model call, for the log of the server. */
  readonly requestId: string;
  /** Id of the session, so that a router can send all calls of a session to the server that has cached its prefix. */
  readonly sessionId: string;
  readonly ids: readonly number[];
  readonly maxTokens: number;
  /** Parameters outside of `EngineConnection.supports` have their neutral values. */
  readonly sampling: Readonly<Record<SamplingParameter, number>>;
  /** `null` for a random seed. */
  readonly seed: number | null;
  /** Ids at which the reply ends. The last sampled id is then one of them. */
  readonly endIds: readonly number[];
  /** Texts at which the reply ends. The sampled ids then contain the text. */
  readonly stop: readonly string[];
};

/** The ids that a server has sampled, and why it stopped: at an end id or a stop text (`stop`), or at the token limit (`length`). */
export type SampledIds = {
  readonly ids: readonly number[];
  /** The log-probability of each id. */
  readonly logprobs: readonly number[];
  readonly finish: 'stop' | 'length';
  /** Number of tokens of the prompt that came from the prefix cache; absent when unknown. */
  readonly cachedTokens?: number | null;
};

/** Requests to the server of an engine, with its API key. They reject with `FloeError`, whose code follows from the status. */
export type EngineKit = {
  /** Requests JSON by GET. The limit is 10 seconds. */
  get(path: string, signal?: AbortSignal): Promise<unknown>;
  /** Posts JSON and resolves with the JSON of the reply. There is no time limit but `signal`. */
  post(path: string, body: object, signal: AbortSignal): Promise<unknown>;
  /** Makes an error with the id of the engine. `engine_unavailable` means that no reply began, so that another engine is tried. */
  error(code: 'engine_error' | 'engine_unavailable' | 'unsupported', message: string): FloeError;
};

/**
 * A connection to one inference server that samples token ids. floe renders the prompts and parses the replies with the engine's `tokenizer`
 * folder. It also joins interrupted replies, and refuses requests that the server cannot satisfy.
 */
export type EngineConnection = {
  /** Name of the model that the server serves. */
  readonly model: string;
  readonly serverVersion?: string | null;
  /** Context length in tokens; absent or `null` for the context length that the tokenizer's configuration declares. */
  readonly contextTokens?: number | null;
  /** The sampling parameters that the server supports. A request that sets another parameter to a value that is not neutral is refused. */
  readonly supports: readonly SamplingParameter[];
  /**
   * Whether log-probabilities are the model's own, or computed after the sampling parameters were applied. When absent, the mode of the
   * engine's registration holds.
   */
  readonly logprobsMode?: LogprobsMode;
  sample(request: SampleRequest, signal: AbortSignal): Promise<SampledIds>;
  /** Returns the version of the current weights; absent when the server does not report it, and `null` when it has none. */
  policyVersion?(): Promise<string | null>;
  /** Pauses sampling for a weight update. Needs `resume`. */
  pause?(mode: PauseMode, signal: AbortSignal): Promise<void>;
  resume?(signal: AbortSignal): Promise<void>;
  /** Returns the metrics of the server in Prometheus text. */
  metrics?(signal: AbortSignal): Promise<string | null>;
  close?(): Promise<void>;
};

/** A kind of engine. */
export type EngineDefinition = {
  /**
   * Connects to the server of `spec` when it is registered, and again after it was unavailable. Rejects when the server cannot be reached or
   * does not serve the model that `spec` names.
   */
  connect(spec: EngineSpec, kit: EngineKit): Promise<EngineConnection>;
};

/** Defines a kind of engine. A module exports the result as its default; the operator chooses the name of the kind. */
export function defineEngine(definition: EngineDefinition): EngineDefinition {
  return definition;
}

/**
 * Returns the engine that a module exports. `where` names the module in errors. Throws `setup_failed` for a module that exports no engine, and
 * when the kind has the name of one of floe's own kinds.
 */
export function engineModule(kind: string, where: string, module: Readonly<Record<string, unknown>>): EngineDefinition {
  if (engineKindSchema.safeParse(kind).success) {
    throw new FloeError('setup_failed', `${where}: floe itself has the kind ${kind}; choose another name`);
  }
  const exported = module.default;
  if (isDefinition(exported)) return exported;
  throw new FloeError('setup_failed', `${where} exports no engine as default; make one with defineEngine`);
}

function isDefinition(value: unknown): value is EngineDefinition {
  return typeof value === 'object' && value !== null && 'connect' in value && typeof value.connect === 'function';
}
