import type { Clock } from '@floe-rl/core';
import type { EngineCapabilities, EngineInfo, EngineSpec, LogprobsMode, TemplateFacts } from '@floe-rl/core/schema';
import { CallHealth } from '../call-health.ts';
import { parseHermes } from '../chat/hermes.ts';
import {
  concatIds,
  concatLogprobs,
  invalidReply,
  joinVersionSpans,
  parseReplyJson,
  resumedUsage,
} from '../chat/reply-tokens.ts';
import { forcesCall } from '../constraint.ts';
import type { Engine, GenerateReply, GenerateRequest, PromptIds, RenderRequest, SampledTokens } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import { probeTemplate } from '../template-probe.ts';
import { EngineVersions } from '../versions.ts';
import { completeLogprobs, isUntransformed } from './logprobs.ts';
import { parseDistribution, parseSampled, type SampledReply, type TokenLogprob } from './reply.ts';
import { type Conversation, completionBody, distributionBody } from './request.ts';
import { readServerFacts, type ServerFacts } from './server-facts.ts';
import { LlamaCppTokenizer } from './tokenizer.ts';

const NEVER_ABORTED = new AbortController().signal;

/**
 * Text whose first token the server is forced to sample in requests that only read the probabilities of the next token. It is a complete
 * character, because the server reports no probabilities for incomplete characters.
 */
const FORCED_TEXT = 'a';

const NOTES = [
  'no weight updates: the version is the one that was set',
  'replies arrive whole: streams lose the ids of characters that take several tokens',
  'log-probabilities that the server leaves out (inside such characters, in stop strings) are requested one by one',
  'calls and thinking are parsed by floe; tool choices other than auto and none are refused',
];

const PREFILL_NOTE = 'its turns cannot be spliced: start it with --no-prefill-assistant';

/**
 * Connects to a llama.cpp server. Its prompts are always token ids: messages are first rendered with its chat template. Rejects with
 * `engine_unavailable` when the server cannot be reached or is still loading, and with `engine_error` when it does not serve the model that
 * `spec` names. Rejects with `unsupported` when `spec` names a parser that floe does not have.
 */
export async function createLlamaCppEngine(spec: EngineSpec, { clock }: { readonly clock: Clock }): Promise<Engine> {
  const server = new EngineServer(spec, { clock, isOverflow: ({ type }) => type === 'exceed_context_size_error' });
  try {
    const facts = await readServerFacts(server, spec);
    const tokenizer = new LlamaCppTokenizer(server, facts.model);
    const greeting = { messageTexts: ['{"role":"user","content":"Go"}'], toolsText: '[]', generationPrompt: true };
    const opening = await tokenizer.template(greeting, NEVER_ABORTED);
    const template = await probeTemplate(async (messageTexts, options) =>
      tokenizer.ids(await tokenizer.template({ messageTexts, ...options }, NEVER_ABORTED), NEVER_ABORTED),
    );
    const [forcedId] = await tokenizer.ids(FORCED_TEXT, NEVER_ABORTED, false);
    if (forcedId === undefined) throw server.error('engine_error', '/tokenize has no ids for a letter');
    const opensThinking = facts.hasThinking && opening.trimEnd().endsWith('<think>');
    return new LlamaCppEngine({ server, tokenizer, facts, spec, template, forcedId, opensThinking }, clock);
  } catch (error) {
    await server.close();
    throw error;
  }
}

type Parts = {
  readonly server: EngineServer;
  readonly tokenizer: LlamaCppTokenizer;
  readonly facts: ServerFacts;
  readonly spec: EngineSpec;
  readonly template: TemplateFacts;
  /** Id of the token that is forced in requests which only read the probabilities of the next token. */
  readonly forcedId: number;
  /** Whether the generation prompt of the chat template ends inside a thinking block. */
  readonly opensThinking: boolean;
};

const NO_TOKENS: SampledTokens = {
  responseIds: new Int32Array(0),
  responseLogprobs: new Float32Array(0),
  versionSpans: [],
  routedExperts: null,
};

class LlamaCppEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  private readonly versions: EngineVersions;

  constructor(parts: Parts, clock: Clock) {
    this.parts = parts;
    this.versions = new EngineVersions(clock, null);
    this.calls = new CallHealth(parts.server.engineId);
  }

  info(): EngineInfo {
    const { server, spec, facts, template } = this.parts;
    const isSplicing = template.close_ids.length > 0;
    const capabilities: EngineCapabilities = {
      token_ids: true,
      token_input: 'completion',
      version_spans: false,
      pause: false,
      abort: false,
      cache_salt: false,
      notes: isSplicing ? NOTES : [...NOTES, PREFILL_NOTE],
      template,
    };
    return {
      engine_id: server.engineId,
      kind: 'llama_cpp',
      base_url: spec.base_url,
      pool: spec.pool,
      model: facts.model,
      server_version: facts.version,
      max_model_len: facts.contextTokens,
      logprobs_mode: spec.logprobs_mode,
      policy_version: this.versions.last,
      healthy: this.calls.healthy,
      streaming: false,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities,
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      if (forcesCall(request)) {
        throw this.parts.server.error('unsupported', `tool_choice ${JSON.stringify(request.toolChoice)}`);
      }
      const prompt = request.prompt ?? (await this.promptOf(request, signal));
      return await this.sample(request, prompt, request.resumeFrom ?? NO_TOKENS, signal);
    });
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.calls.track(async () => (await this.promptOf(request, signal)).ids.length);
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.calls.track(() => this.renderedIds(request, signal));
  }

  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string> {
    return this.calls.track(() => this.parts.tokenizer.text(ids, signal));
  }

  pause(): Promise<void> {
    return Promise.reject(this.parts.server.error('unsupported', 'llama.cpp cannot pause'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.parts.server.error('unsupported', 'llama.cpp cannot pause'));
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

  metrics(signal: AbortSignal): Promise<string | null> {
    return this.parts.server.metrics(signal);
  }

  close(): Promise<void> {
    return this.parts.server.close();
  }

  private async renderedIds(conversation: Conversation, signal: AbortSignal): Promise<Int32Array> {
    const { tokenizer } = this.parts;
    return tokenizer.ids(await tokenizer.template(conversation, signal), signal);
  }

  private async promptOf({ messageTexts, toolsText }: GenerateRequest, signal: AbortSignal): Promise<PromptIds> {
    const ids = await this.renderedIds({ messageTexts, toolsText, generationPrompt: true }, signal);
    return { ids, json: Buffer.from(ids.join(',')) };
  }

  private async sample(
    request: GenerateRequest,
    prompt: PromptIds,
    first: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const versionsOf = this.versions.beginReply(request.policyVersion);
    const firstCount = first.responseIds.length;
    const context = firstCount === 0 ? prompt.ids : concatIds(prompt.ids, first.responseIds);
    const promptJson = prompt.json.toString('latin1');
    const contextJson = firstCount === 0 ? promptJson : `${promptJson},${first.responseIds.join(',')}`;
    const maxNewTokens = request.maxTokens === null ? null : request.maxTokens - firstCount;
    if (maxNewTokens !== null && maxNewTokens < 1) {
      throw invalidReply('the reply to be resumed has reached its bound already');
    }
    const { mode, isTransformed } = this.logprobsModeOf(request);
    const { model, vocabulary, contextTokens } = this.parts.facts;
    const postSampling = isTransformed && mode === 'processed';
    const body = completionBody(model, request, contextJson, { maxNewTokens, postSampling, contextTokens });
    const sampled = await this.complete(body, context.length, maxNewTokens, signal);
    const { ids, known } = sampled;
    const { sampling } = request;
    const logprobs = await completeLogprobs(
      { promptIds: context, ids, known, mode, isTransformed, sampling, vocabulary },
      (prefix, count) => this.distribution(prefix, count, signal),
    );
    const responseIds = concatIds(first.responseIds, ids);
    const { message, finishReason } = await this.parsed(request, responseIds, sampled.stop, signal);
    const spans = await versionsOf({ count: ids.length, spans: null });
    return {
      promptIds: prompt.ids,
      responseIds,
      responseLogprobs: concatLogprobs(first.responseLogprobs, logprobs),
      versionSpans: joinVersionSpans(first.versionSpans, firstCount, spans),
      routedExperts: null,
      logprobsMode: mode,
      message,
      finishReason,
      stop: sampled.stop,
      usage: resumedUsage(prompt.ids.length, responseIds.length, sampled.cachedTokens),
    };
  }

  /**
   * Decides whether a reply gets raw or processed log-probabilities. The server omits the processed values of some tokens, and floe
   * computes them from the raw values. With penalties or a grammar this computation is not possible, so replies to such requests get raw
   * values and the mode `raw`.
   */
  private logprobsModeOf({ sampling, responseFormat }: GenerateRequest): {
    mode: LogprobsMode;
    isTransformed: boolean;
  } {
    const isTransformed = !isUntransformed(sampling, responseFormat !== null);
    const isComputable = responseFormat === null && sampling.repetition_penalty === 1;
    const mode = this.parts.spec.logprobs_mode === 'raw' || (isTransformed && !isComputable) ? 'raw' : 'processed';
    return { mode, isTransformed };
  }

  private async complete(
    body: string,
    promptTokens: number,
    maxNewTokens: number | null,
    signal: AbortSignal,
  ): Promise<SampledReply> {
    const { server, facts } = this.parts;
    const reply = await server.post('/completion', body, null, signal);
    const { modelNames, contextTokens } = facts;
    const expected = { modelNames, contextTokens, promptTokens, maxNewTokens };
    return parseSampled(parseReplyJson(await reply.read(), null), expected);
  }

  private async distribution(prefix: Int32Array, count: number, signal: AbortSignal): Promise<readonly TokenLogprob[]> {
    const { server, facts, forcedId } = this.parts;
    const body = distributionBody(facts.model, prefix.join(','), forcedId, count);
    const reply = await server.post('/completion', body, null, signal);
    return parseDistribution(jsonOf(await reply.read()));
  }

  /** Converts the sampled ids to text, without the stop token or stop string, and parses the message from the text. */
  private async parsed(
    request: GenerateRequest,
    responseIds: Int32Array,
    stop: GenerateReply['stop'],
    signal: AbortSignal,
  ): Promise<Pick<GenerateReply, 'message' | 'finishReason'>> {
    const { tokenizer, facts, opensThinking } = this.parts;
    const visible = stop?.kind === 'token' ? responseIds.subarray(0, -1) : responseIds;
    let text = visible.length === 0 ? '' : await tokenizer.text(visible, signal);
    if (stop?.kind === 'string') {
      const end = text.indexOf(stop.text);
      if (end < 0) throw invalidReply(`stopping_word is ${JSON.stringify(stop.text)}, which the ids do not contain`);
      text = text.slice(0, end);
    }
    const message = parseHermes(text, {
      thinking: facts.hasThinking,
      opensThinking,
      calls: facts.hasCalls && request.tools.length > 0 && request.toolChoice !== 'none',
      callId: (index) => `call_${request.completionId}_${index}`,
    });
    const finishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
    return { message, finishReason: stop === null ? 'length' : finishReason };
  }
}
