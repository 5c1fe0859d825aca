import type { EngineCapabilities, EngineInfo, EngineSpec, LogprobsMode, TemplateFacts } from '../../schema/index.ts';
import { CallHealth } from '../call-health.ts';
import type { Engine, GenerateReply, GenerateRequest, PromptIds, RenderRequest, SampledTokens } from '../engine.ts';
import { EngineServer, jsonOf } from '../engine-server.ts';
import { parseReplyJson, refusal } from '../record.ts';
import { probeTemplate } from '../template-probe.ts';
import { parseHermes } from './hermes.ts';
import { findLostLogprobs } from './logprobs.ts';
import { isPlain } from './processed.ts';
import { parseDistribution, parseSampled, type SampledReply } from './reply.ts';
import { completionBody, distributionBody } from './request.ts';
import { type LlamaCppFacts, readFacts } from './server-facts.ts';
import { LlamaCppTexts } from './texts.ts';

const never = new AbortController().signal;

/** Any text whose ids are complete characters; what is forced where only the other probabilities matter. */
const FORCED_TEXT = 'a';

const NOTES = [
  'no weight updates: the version is the one that was set',
  'replies arrive whole: streams lose the ids of characters that take several tokens',
  'log-probabilities that the server leaves out (inside such characters, in stop strings) are asked for one by one',
  'calls and thinking are read by floe; tool choices other than auto and none are refused',
];

const PREFILL_NOTE = 'its turns cannot be spliced: start it with --no-prefill-assistant';

/**
 * A server of llama.cpp. Prompts are always ids: messages are rendered by its template first. Rejects with `engine_unavailable`
 * when it cannot be reached or still loads, `engine_error` when it does not serve the model that `spec` names, `unsupported` for
 * parsers that floe does not have.
 */
export async function createLlamaCppEngine(spec: EngineSpec): Promise<Engine> {
  const server = new EngineServer(spec, {
    isOverflow: ({ type }) => type === 'exceed_context_size_error',
  });
  try {
    const facts = await readFacts(server, spec);
    const texts = new LlamaCppTexts(server, facts.model);
    const opening = await texts.template(['{"role":"user","content":"Go"}'], '[]', true, never);
    const template = await probeTemplate(async (messages, { toolsText, generationPrompt }) =>
      texts.ids(await texts.template(messages, toolsText, generationPrompt, never), never),
    );
    const [forcedId] = await texts.ids(FORCED_TEXT, never, false);
    if (forcedId === undefined) throw server.fail('engine_error', '/tokenize has no ids for a letter');
    const opensThinking = facts.thinking && opening.trimEnd().endsWith('<think>');
    return new LlamaCppEngine({ server, texts, facts, spec, template, forcedId, opensThinking });
  } catch (error) {
    await server.close();
    throw error;
  }
}

type Parts = {
  readonly server: EngineServer;
  readonly texts: LlamaCppTexts;
  readonly facts: LlamaCppFacts;
  readonly spec: EngineSpec;
  readonly template: TemplateFacts;
  readonly forcedId: number;
  readonly opensThinking: boolean;
};

const NOTHING: SampledTokens = {
  responseIds: new Int32Array(0),
  responseLogprobs: new Float32Array(0),
  versionSpans: [],
  routedExperts: null,
};

class LlamaCppEngine implements Engine {
  private readonly parts: Parts;
  private readonly calls: CallHealth;
  private version: string | null = null;

  constructor(parts: Parts) {
    this.parts = parts;
    this.calls = new CallHealth(parts.server.engineId);
  }

  info(): EngineInfo {
    const { server, spec, facts, template } = this.parts;
    const splices = template.close_ids.length > 0;
    const capabilities: EngineCapabilities = {
      token_ids: true,
      token_input: 'completion',
      version_spans: false,
      pause: false,
      abort: false,
      cache_salt: false,
      notes: splices ? NOTES : [...NOTES, PREFILL_NOTE],
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
      policy_version: this.version,
      healthy: this.calls.healthy,
      streaming: false,
      inflight: this.calls.inflight,
      max_concurrency: spec.max_concurrency,
      capabilities,
    };
  }

  generate(request: GenerateRequest, signal: AbortSignal): Promise<GenerateReply> {
    return this.calls.track(async () => {
      const { toolChoice, tools } = request;
      if (tools.length > 0 && toolChoice !== null && toolChoice !== 'auto' && toolChoice !== 'none') {
        throw this.parts.server.fail('unsupported', `tool_choice ${JSON.stringify(toolChoice)}`);
      }
      const prompt = request.prompt ?? (await this.promptOf(request, signal));
      return await this.sample(request, prompt, request.begun ?? NOTHING, signal);
    });
  }

  countTokens(request: GenerateRequest, signal: AbortSignal): Promise<number> {
    return this.calls.track(async () => (await this.promptOf(request, signal)).ids.length);
  }

  render(request: RenderRequest, signal: AbortSignal): Promise<Int32Array> {
    return this.calls.track(() => this.rendered(request, signal));
  }

  detokenize(ids: Int32Array, signal: AbortSignal): Promise<string> {
    return this.calls.track(() => this.parts.texts.text(ids, signal));
  }

  pause(): Promise<void> {
    return Promise.reject(this.parts.server.fail('unsupported', 'llama.cpp cannot pause'));
  }

  resume(): Promise<void> {
    return Promise.reject(this.parts.server.fail('unsupported', 'llama.cpp cannot pause'));
  }

  setPolicyVersion(version: string): void {
    this.version = version;
  }

  metrics(signal: AbortSignal): Promise<string | null> {
    return this.parts.server.metrics(signal);
  }

  close(): Promise<void> {
    return this.parts.server.close();
  }

  private async rendered(
    {
      messageTexts,
      toolsText,
      generationPrompt,
    }: Pick<RenderRequest, 'messageTexts' | 'toolsText' | 'generationPrompt'>,
    signal: AbortSignal,
  ): Promise<Int32Array> {
    const { texts } = this.parts;
    return texts.ids(await texts.template(messageTexts, toolsText, generationPrompt, signal), signal);
  }

  private async promptOf({ messageTexts, toolsText }: GenerateRequest, signal: AbortSignal): Promise<PromptIds> {
    const ids = await this.rendered({ messageTexts, toolsText, generationPrompt: true }, signal);
    return { ids, json: Buffer.from(ids.join(',')) };
  }

  private async sample(
    request: GenerateRequest,
    prompt: PromptIds,
    begun: SampledTokens,
    signal: AbortSignal,
  ): Promise<GenerateReply> {
    const versionBefore = this.version;
    const context = begun.responseIds.length === 0 ? prompt.ids : joined(prompt.ids, begun.responseIds, Int32Array);
    const contextJson =
      begun.responseIds.length === 0
        ? prompt.json.toString('latin1')
        : `${prompt.json.toString('latin1')},${begun.responseIds.join(',')}`;
    const room = request.maxTokens === null ? null : request.maxTokens - begun.responseIds.length;
    if (room !== null && room < 1) throw refusal('a reply was to go on that had reached its bound');
    const { mode, transformed } = this.logprobsOf(request);
    const { model, vocabulary, contextTokens } = this.parts.facts;
    const postSampling = transformed && mode === 'processed';
    const body = completionBody(model, request, contextJson, { maxNew: room, postSampling, contextTokens });
    const sampled = await this.complete(body, context.length, room, signal);
    const { ids, known } = sampled;
    const { sampling } = request;
    const logprobs = await findLostLogprobs(
      { promptIds: context, ids, known, mode, transformed, sampling, vocabulary },
      (prefix, count) => this.distribution(prefix, count, signal),
    );
    const responseIds = joined(begun.responseIds, ids, Int32Array);
    const { message, finishReason } = await this.read(request, responseIds, sampled.stop, signal);
    const version = this.version === versionBefore ? this.version : null;
    return {
      promptIds: prompt.ids,
      responseIds,
      responseLogprobs: joined(begun.responseLogprobs, logprobs, Float32Array),
      versionSpans: [...begun.versionSpans, { version, start: begun.responseIds.length, end: responseIds.length }],
      routedExperts: null,
      logprobsMode: mode,
      message,
      finishReason,
      stop: sampled.stop,
      usage: {
        prompt_tokens: prompt.ids.length,
        completion_tokens: responseIds.length,
        cached_tokens: sampled.cachedTokens === null ? null : Math.min(sampled.cachedTokens, prompt.ids.length),
      },
    };
  }

  /**
   * The server tells either of the two. With penalties or a grammar, what it leaves out of the processed ones cannot be found, so
   * that those replies have the raw ones, and say so.
   */
  private logprobsOf({ sampling, responseFormat }: GenerateRequest): { mode: LogprobsMode; transformed: boolean } {
    const transformed = !isPlain(sampling, responseFormat !== null);
    const lasting = responseFormat === null && sampling.repetition_penalty === 1;
    const mode = this.parts.spec.logprobs_mode === 'raw' || (transformed && !lasting) ? 'raw' : 'processed';
    return { mode, transformed };
  }

  private async complete(
    body: string,
    promptTokens: number,
    maxNew: number | null,
    signal: AbortSignal,
  ): Promise<SampledReply> {
    const { server, facts } = this.parts;
    const reply = await server.post('/completion', body, null, signal);
    const { models, contextTokens } = facts;
    return parseSampled(parseReplyJson(await reply.read(), null), { models, contextTokens, promptTokens, maxNew });
  }

  private async distribution(
    prefix: Int32Array,
    count: number,
    signal: AbortSignal,
  ): Promise<ReturnType<typeof parseDistribution>> {
    const { server, facts, forcedId } = this.parts;
    const reply = await server.post(
      '/completion',
      distributionBody(facts.model, prefix.join(','), forcedId, count),
      null,
      signal,
    );
    return parseDistribution(jsonOf(await reply.read()));
  }

  private async read(
    request: GenerateRequest,
    responseIds: Int32Array,
    stop: GenerateReply['stop'],
    signal: AbortSignal,
  ): Promise<Pick<GenerateReply, 'message' | 'finishReason'>> {
    const { texts, facts, opensThinking } = this.parts;
    const visible = stop?.kind === 'token' ? responseIds.subarray(0, -1) : responseIds;
    let text = visible.length === 0 ? '' : await texts.text(visible, signal);
    if (stop?.kind === 'string') {
      const end = text.indexOf(stop.text);
      if (end < 0) throw refusal(`stopping_word is ${JSON.stringify(stop.text)}, which the ids do not contain`);
      text = text.slice(0, end);
    }
    const message = parseHermes(text, {
      thinking: facts.thinking,
      opensThinking,
      calls: facts.calls && request.tools.length > 0 && request.toolChoice !== 'none',
      callId: (index) => `call_${request.completionId}_${index}`,
    });
    const ended = message.tool_calls === undefined ? 'stop' : 'tool_calls';
    return { message, finishReason: stop === null ? 'length' : ended };
  }
}

function joined<T extends Int32Array | Float32Array>(first: T, second: T, make: new (length: number) => T): T {
  const all = new make(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}
