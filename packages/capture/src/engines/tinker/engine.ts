import { type Clock, FloeError } from '@floe-rl/core';
import type { EngineCapabilities, EngineInfo, EngineSpec, StopCause, TemplateFacts } from '@floe-rl/core/schema';
import { CallHealth } from '../call-health.ts';
import { type OwnParsers, ownParsers, parseHermes } from '../chat/hermes.ts';
import { concatIds, concatLogprobs, invalidReply, joinVersionSpans, resumedUsage } from '../chat/reply-tokens.ts';
import { firstStop } from '../chat/stop-strings.ts';
import type { Engine, GenerateReply, GenerateRequest, PromptIds, RenderRequest, SampledTokens } from '../engine.ts';
import type { ProbedLogprobs } from '../logprobs-probe.ts';
import { probeTemplate } from '../template-probe.ts';
import type { Conversation } from '../tokenizer/chat-template.ts';
import { type LocalModelText, loadTokenizerFolder } from '../tokenizer/tokenizer-folder.ts';
import { probeTinkerLogprobs } from './logprobs-mode.ts';
import { checkedSample, type Sample } from './reply.ts';
import { sampleBody, unsupportedSetting } from './request.ts';
import { Sampler } from './sampler.ts';
import { TinkerService } from './service.ts';

const NEVER_ABORTED = new AbortController().signal;

const NOTES = [
  'prompts are rendered and replies are parsed by floe, with the tokenizer and template of the folder `tokenizer`',
  'replies arrive whole',
  'tool choices other than auto and none, response formats, min_p and repetition_penalty are refused',
];

/**
 * Connects to a server with the API of Tinker's sampling service. Rejects with `setup_failed` when `spec` names no usable tokenizer,
 * `engine_unavailable` when the server cannot be reached, and `engine_error` when it refuses the API key or the model.
 */
export async function createTinkerEngine(spec: EngineSpec, { clock }: { readonly clock: Clock }): Promise<Engine> {
  if (spec.tokenizer === null) {
    throw new FloeError(
      'setup_failed',
      'an engine of kind tinker needs `tokenizer`: a folder with tokenizer.json and the chat template of the model',
    );
  }
  const text = await loadTokenizerFolder(spec.tokenizer);
  const parsers = ownParsers(spec, text.template.source);
  const service = await TinkerService.connect(spec, clock);
  try {
    return new TinkerEngine(await connectedParts(spec, service, text, parsers));
  } catch (error) {
    await service.close();
    throw error;
  }
}

type Parts = {
  readonly spec: EngineSpec;
  readonly service: TinkerService;
  readonly text: LocalModelText;
  readonly parsers: OwnParsers;
  /** The sampler of the weights with which the engine was registered. */
  readonly sampler: Sampler;
  readonly model: string;
  readonly contextTokens: number | null;
  readonly template: TemplateFacts;
  readonly logprobs: ProbedLogprobs;
  /** The ids at which sampling stops, and their texts in the same order. */
  readonly ends: { readonly ids: readonly number[]; readonly texts: readonly string[] };
  /** Whether the generation prompt of the chat template ends inside a thinking block. */
  readonly opensThinking: boolean;
};

async function connectedParts(
  spec: EngineSpec,
  service: TinkerService,
  text: LocalModelText,
  parsers: OwnParsers,
): Promise<Parts> {
  const models = await service.models();
  const requested = spec.model ?? models[0]?.name ?? null;
  if (requested === null) throw service.server.error('engine_error', 'it lists no models; name the one to use');
  const sampler = Sampler.of(service, requested);
  const model = (await service.baseModelOf(await sampler.session())) ?? requested;
  const template = await probeTemplate(async (messageTexts, options) => idsOf(text, { messageTexts, ...options }));
  const greeting = { messageTexts: ['{"role":"user","content":"Go"}'], toolsText: '[]', generationPrompt: true };
  const ids = [...new Set([...template.close_ids, ...text.endIds])];
  const logprobs = await probeTinkerLogprobs(spec.logprobs_mode, idsOf(text, greeting), async (body) =>
    service.sample(await sampler.session(), body, null, NEVER_ABORTED),
  );
  return {
    spec,
    service,
    text,
    parsers,
    sampler,
    model,
    contextTokens: models.find(({ name }) => name === model)?.contextTokens ?? text.contextTokens,
    template,
    logprobs,
    ends: { ids, texts: ids.map((id) => text.tokenizer.decode(Int32Array.of(id))) },
    opensThinking: parsers.hasThinking && text.template.render(greeting).trimEnd().endsWith('<think>'),
  };
}

function idsOf({ template, tokenizer }: LocalModelText, conversation: Conversation): Int32Array {
  return tokenizer.encode(template.render(conversation));
}

const NO_TOKENS: SampledTokens = {
  responseIds: new Int32Array(0),
  responseLogprobs: new Float32Array(0),
  versionSpans: [],
  routedExperts: null,
};

class TinkerEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  private readonly capabilities: EngineCapabilities;
  private sampler: Sampler;

  constructor(parts: Parts) {
    this.parts = parts;
    this.sampler = parts.sampler;
    this.calls = new CallHealth(parts.service.server.engineId);
    this.capabilities = {
      token_ids: true,
      token_input: 'generate',
      version_spans: false,
      pause: false,
      abort: parts.service.canCancel,
      cache_salt: false,
      notes: [...NOTES, ...parts.logprobs.notes],
      template: parts.template,
    };
  }

  info(): EngineInfo {
    const { service, spec, model, contextTokens, logprobs } = this.parts;
    return {
      engine_id: service.server.engineId,
      kind: 'tinker',
      base_url: spec.base_url,
      pool: spec.pool,
      model,
      server_version: null,
      max_model_len: contextTokens,
      logprobs_mode: logprobs.mode,
      policy_version: this.sampler.version,
      healthy: this.calls.healthy,
      streaming: false,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities: this.capabilities,
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      const refusal = unsupportedSetting(this.parts.service.server, request);
      if (refusal !== null) throw refusal;
      const prompt = request.prompt ?? promptOf(this.rendered(request));
      return this.sample(request, prompt, request.resumeFrom ?? NO_TOKENS, signal);
    });
  }

  countTokens(request: GenerateRequest): Promise<number> {
    return this.calls.track(async () => this.rendered(request).length);
  }

  render(request: RenderRequest): Promise<Int32Array> {
    return this.calls.track(async () => idsOf(this.parts.text, request));
  }

  detokenize(ids: Int32Array): Promise<string> {
    return this.calls.track(async () => this.parts.text.tokenizer.decode(ids));
  }

  pause(): Promise<void> {
    return Promise.reject(this.parts.service.server.error('unsupported', 'the service cannot be paused'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.parts.service.server.error('unsupported', 'the service cannot be paused'));
  }

  /** A version that is the path of saved weights (`tinker://…`) selects these weights. Any other version names the current weights. */
  setPolicyVersion(version: string): void {
    if (version !== this.sampler.version) this.sampler = this.sampler.withVersion(version);
  }

  policyVersion(): Promise<string | null> {
    return Promise.resolve(this.sampler.version);
  }

  weightsMayHaveChanged(): void {
    // Nothing to do. The weights of a sampling session never change, and every reply is recorded with the version of its session.
  }

  metrics(): Promise<string | null> {
    return Promise.resolve(null);
  }

  close(): Promise<void> {
    return this.parts.service.close();
  }

  private rendered({ messageTexts, toolsText }: GenerateRequest): Int32Array {
    return idsOf(this.parts.text, { messageTexts, toolsText, generationPrompt: true });
  }

  private async sample(
    request: GenerateRequest,
    prompt: PromptIds,
    first: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const { service, ends, logprobs } = this.parts;
    const { sampler } = this;
    const firstCount = first.responseIds.length;
    const maxTokens = this.boundOf(request, prompt.ids.length, firstCount);
    const promptJson = prompt.json.toString('latin1');
    const idsJson = firstCount === 0 ? promptJson : `${promptJson},${first.responseIds.join(',')}`;
    // The API accepts ids or strings, but not both. Where the request has stop strings, end tokens are therefore sent as their texts.
    const stop = request.stop.length === 0 ? ends.ids : [...request.stop, ...ends.texts];
    const body = sampleBody(request, { idsJson, maxTokens, stop });
    const response = await service.sample(await sampler.session(), body, request, signal);
    const sample = checkedSample(response, {
      maxTokens,
      endIds: ends.ids,
      contextTokens: prompt.ids.length + firstCount,
    });
    const responseIds = concatIds(first.responseIds, sample.ids);
    const spans = [{ version: sampler.version, start: 0, end: sample.ids.length }];
    return {
      promptIds: prompt.ids,
      responseIds,
      responseLogprobs: concatLogprobs(first.responseLogprobs, sample.logprobs),
      versionSpans: joinVersionSpans(first.versionSpans, firstCount, spans),
      routedExperts: null,
      logprobsMode: logprobs.mode,
      ...this.parsed(request, responseIds, sample),
      usage: resumedUsage(prompt.ids.length, responseIds.length, sample.cachedTokens),
    };
  }

  /**
   * Returns the maximum number of tokens that this call may sample. Throws `engine_rejected` when the prompt fills the context, and
   * `unsupported` when neither the request nor the context limits the reply, because the API requires a limit.
   */
  private boundOf(request: GenerateRequest, promptTokens: number, firstCount: number): number {
    const { contextTokens, service } = this.parts;
    const { engineId } = service.server;
    const context = promptTokens + firstCount;
    if (contextTokens !== null && context >= contextTokens) {
      throw new FloeError(
        'engine_rejected',
        `This model's maximum context length is ${contextTokens} tokens, but the prompt has ${context}.`,
        { engine_id: engineId, context_overflow: true },
      );
    }
    const capacity = contextTokens === null ? Number.POSITIVE_INFINITY : contextTokens - context;
    const requested = request.maxTokens === null ? Number.POSITIVE_INFINITY : request.maxTokens - firstCount;
    if (requested < 1) throw invalidReply('the reply to be resumed has reached its bound already');
    const bound = Math.min(capacity, requested);
    if (Number.isFinite(bound)) return bound;
    throw service.server.error(
      'unsupported',
      'it requires a token limit, and its context length is unknown: set max_tokens, or model_max_length in tokenizer_config.json',
      { field: 'max_tokens' },
    );
  }

  /** Parses the message of a reply and determines what ended it. */
  private parsed(
    request: GenerateRequest,
    responseIds: Int32Array,
    sample: Sample,
  ): Pick<GenerateReply, 'message' | 'finishReason' | 'stop'> {
    const { parsers, opensThinking, text } = this.parts;
    const { tokenizer } = text;
    const visible = sample.endId === null ? responseIds : responseIds.subarray(0, -1);
    let content = tokenizer.decode(visible);
    let stop: StopCause | null = sample.endId === null ? null : { kind: 'token', id: sample.endId };
    if (stop === null && sample.isStopped) {
      const found = firstStop(content, request.stop);
      if (found === null) throw invalidReply('it was stopped, but neither at an end token nor at a stop string');
      stop = { kind: 'string', text: found.stop };
      content = content.slice(0, found.at);
    }
    const message = parseHermes(content, {
      thinking: parsers.hasThinking,
      opensThinking,
      calls: parsers.hasCalls && request.tools.length > 0 && request.toolChoice !== 'none',
      callId: (index) => `call_${request.completionId}_${index}`,
    });
    const finishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
    return { message, finishReason: stop === null ? 'length' : finishReason, stop };
  }
}

function promptOf(ids: Int32Array): PromptIds {
  return { ids, json: Buffer.from(ids.join(',')) };
}
