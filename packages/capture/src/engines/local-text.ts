import { FloeError } from '@floe-rl/core';
import type { EngineSpec, StopCause, TemplateFacts } from '@floe-rl/core/schema';
import { type OwnParsers, ownParsers, parseHermes } from './chat/hermes.ts';
import { invalidReply } from './chat/reply-tokens.ts';
import { firstStop } from './chat/stop-strings.ts';
import type { Sample } from './checked-sample.ts';
import type { GenerateReply, GenerateRequest, PromptIds } from './engine.ts';
import { probeTemplate } from './template-probe.ts';
import type { Conversation } from './tokenizer/chat-template.ts';
import { type LocalModelText, loadTokenizerFolder } from './tokenizer/tokenizer-folder.ts';

const GREETING = { messageTexts: ['{"role":"user","content":"Go"}'], toolsText: '[]', generationPrompt: true };

/**
 * Renders the prompts and parses the replies of an engine that only samples token ids, with the tokenizer and chat template of the folder
 * that its specification names.
 */
export class LocalText {
  /** Properties of the chat template. */
  readonly facts: TemplateFacts;
  /** The ids at which sampling stops, and their texts in the same order. */
  readonly ends: { readonly ids: readonly number[]; readonly texts: readonly string[] };
  /** The context length that the folder declares, in tokens; `null` when it declares none. */
  readonly contextTokens: number | null;
  /** A short prompt, for requests that probe the server. */
  readonly greeting: Int32Array;
  private readonly text: LocalModelText;
  private readonly parsers: OwnParsers;
  /** Whether the generation prompt of the chat template ends inside a thinking block. */
  private readonly opensThinking: boolean;

  private constructor(text: LocalModelText, parsers: OwnParsers, facts: TemplateFacts) {
    this.text = text;
    this.parsers = parsers;
    this.facts = facts;
    const ids = [...new Set([...facts.close_ids, ...text.endIds])];
    this.ends = { ids, texts: ids.map((id) => text.tokenizer.decode(Int32Array.of(id))) };
    this.contextTokens = text.contextTokens;
    this.greeting = this.render(GREETING);
    this.opensThinking = parsers.hasThinking && text.template.render(GREETING).trimEnd().endsWith('<think>');
  }

  /** Loads the folder. Rejects with `setup_failed` when `spec` names no usable folder, and with `unsupported` for parsers that floe lacks. */
  static async load(spec: EngineSpec): Promise<LocalText> {
    if (spec.tokenizer === null) {
      throw new FloeError(
        'setup_failed',
        `an engine of kind ${spec.kind} needs \`tokenizer\`: a folder with tokenizer.json and the chat template of the model`,
      );
    }
    const text = await loadTokenizerFolder(spec.tokenizer);
    const parsers = ownParsers(spec, text.template.source);
    const idsOf = (conversation: Conversation): Int32Array => text.tokenizer.encode(text.template.render(conversation));
    const facts = await probeTemplate(async (messageTexts, options) => idsOf({ messageTexts, ...options }));
    return new LocalText(text, parsers, facts);
  }

  render(conversation: Conversation): Int32Array {
    return this.text.tokenizer.encode(this.text.template.render(conversation));
  }

  decode(ids: Int32Array): string {
    return this.text.tokenizer.decode(ids);
  }

  /** Returns the prompt of a request: its own ids, or else the ids of its rendered messages. */
  promptOf({ prompt, messageTexts, toolsText }: GenerateRequest): PromptIds {
    if (prompt !== null) return prompt;
    const ids = this.render({ messageTexts, toolsText, generationPrompt: true });
    return { ids, json: Buffer.from(ids.join(',')) };
  }

  /** Parses the message of a reply and determines what ended it. Throws `engine_error` for a reply that stopped for no known reason. */
  parsed(
    request: GenerateRequest,
    responseIds: Int32Array,
    sample: Sample,
  ): Pick<GenerateReply, 'message' | 'finishReason' | 'stop'> {
    const { parsers, opensThinking } = this;
    const visible = sample.endId === null ? responseIds : responseIds.subarray(0, -1);
    let content = this.decode(visible);
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

/** The limits of one call to an engine that needs a token limit. */
type CallBounds = {
  readonly engineId: string;
  /** Context length of the model in tokens; `null` when unknown. */
  readonly contextTokens: number | null;
  readonly promptTokens: number;
  /** Number of tokens of the reply that were sampled before the call. */
  readonly firstCount: number;
};

/**
 * Returns the maximum number of tokens that a call may sample. Throws `engine_rejected` when the prompt fills the context, and
 * `unsupported` when neither the request nor the context limits the reply.
 */
export function replyBound(request: GenerateRequest, bounds: CallBounds): number {
  const { engineId, contextTokens, promptTokens, firstCount } = bounds;
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
  throw new FloeError(
    'unsupported',
    `engine ${engineId}: it requires a token limit, and its context length is unknown: set max_tokens, or model_max_length in tokenizer_config.json`,
    { engine_id: engineId, field: 'max_tokens' },
  );
}
