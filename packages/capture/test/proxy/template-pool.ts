import { createHash } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { AssistantMessage, FinishReason, StopCause, TemplateFacts, ToolCall } from '@floe-rl/core/schema';
import {
  bundledVocabulary,
  generationPrompt,
  renderChat,
  type ChatMessage as SimMessage,
  type TemplateMode,
  templateMessages,
  thinkBlock,
  toolCallText,
} from '@floe-rl/sim';
import type { GenerateReply, GenerateRequest, RenderRequest } from '../../src/engines/engine.ts';
import type { EnginePools, PooledReply, PoolMode } from '../../src/engines/pool/engine-pools.ts';
import { probeTemplate } from '../../src/engines/template-probe.ts';

/**
 * A reply that the simulated policy samples. With `cut`, only the first `cut` of its ids are sampled: the reply has reached the maximum
 * length and ends without an end-of-turn id. A reply ends at the stop string `stopText`, which is sampled after `message`. The text `dropped`
 * is sampled after `message` as well, and is not part of the message that the engine returns.
 */
export type ScriptedReply = {
  readonly message: Omit<AssistantMessage, 'role'>;
  readonly cut?: number;
  readonly stopText?: string;
  readonly dropped?: string;
  /** The last id of the reply. Default: the end-of-turn id of the chat template. */
  readonly stopId?: number;
};

const vocabulary = bundledVocabulary();

/**
 * Renders messages to token ids with the simulated model's chat template. `open` is whether the generation prompt is added. Throws
 * `engine_rejected` for messages that the template refuses.
 */
export function renderIds(texts: readonly string[], toolsText: string, open: boolean, mode: TemplateMode): Int32Array {
  const messages = texts.map((text) => JSON.parse(text) as SimMessage);
  const text = renderChat(templateMessages(messages, { vision: false, anyArguments: true }), {
    mode,
    tools: JSON.parse(toolsText) as unknown[],
    addGenerationPrompt: open,
  });
  return Int32Array.from(vocabulary.encode(text));
}

export function textOf(ids: Int32Array): string {
  return vocabulary.decode(ids);
}

export function idsOf(text: string): Int32Array {
  return Int32Array.from(vocabulary.encode(text));
}

/**
 * An engine pool of one simulated engine that accepts prompts as token ids. It has the simulated model's chat template and vocabulary, and
 * returns scripted replies.
 */
export class TemplatePool implements Partial<EnginePools> {
  readonly generated: GenerateRequest[] = [];
  readonly rendered: RenderRequest[] = [];
  /** The replies of the next calls, in order. When the list is empty, a reply is one word. */
  readonly replies: ScriptedReply[] = [];
  facts!: TemplateFacts;
  mode: PoolMode['mode'] = 'tokens';
  refuse: (request: RenderRequest) => boolean = () => false;
  readonly template: TemplateMode;
  /** Number of requests to decode ids. */
  decoded = 0;
  private calls = 0;

  private constructor(template: TemplateMode) {
    this.template = template;
  }

  static async start(template: TemplateMode): Promise<TemplatePool> {
    const pool = new TemplatePool(template);
    pool.facts = await probeTemplate(async (texts, { toolsText, generationPrompt: open }) =>
      renderIds(texts, toolsText, open, template),
    );
    return pool;
  }

  get asPool(): EnginePools {
    return this as unknown as EnginePools;
  }

  modeOf(): PoolMode {
    return { mode: this.mode, template: this.facts };
  }

  async modeWhenReady(): Promise<PoolMode> {
    return this.modeOf();
  }

  maxModelLen(): number | null {
    return null;
  }

  async render(request: RenderRequest): Promise<Int32Array> {
    this.rendered.push(request);
    if (this.refuse(request)) throw new FloeError('engine_rejected', 'the template refuses');
    return renderIds(request.messageTexts, request.toolsText, request.generationPrompt, this.template);
  }

  async detokenize(ids: Int32Array): Promise<string> {
    this.decoded++;
    return textOf(ids);
  }

  async countTokens(request: GenerateRequest): Promise<number> {
    return renderIds(request.messageTexts, request.toolsText, true, this.template).length;
  }

  async generate(request: GenerateRequest): Promise<PooledReply> {
    this.generated.push(request);
    const scripted = this.replies.shift() ?? { message: { content: 'fine' } };
    const ids = this.sampled(scripted);
    const promptIds = request.prompt?.ids ?? renderIds(request.messageTexts, request.toolsText, true, this.template);
    if (request.prompt !== null) checkJson(request.prompt.ids, request.prompt.json);
    const reply: GenerateReply = {
      promptIds: promptIds.slice(),
      responseIds: ids,
      responseLogprobs: new Float32Array(ids.length).fill(-0.5),
      versionSpans: [{ version: null, start: 0, end: ids.length }],
      routedExperts: null,
      logprobsMode: 'processed',
      message: this.messageOf(scripted),
      ...endOf(scripted, ids),
      usage: { prompt_tokens: promptIds.length, completion_tokens: ids.length, cached_tokens: null },
    };
    return { reply, engineId: 'toy', model: 'toy', engineMs: 1 };
  }

  private sampled({ message, cut, stopText, dropped, stopId }: ScriptedReply): Int32Array {
    const { content, reasoning_content: thinking, tool_calls: calls = [] } = message;
    const opened = generationPrompt(this.template).endsWith('<think>\n');
    let text = thinking === undefined && !opened ? '' : thinkBlock(thinking ?? '');
    if (opened) text = text.slice('<think>\n'.length);
    text += content ?? '';
    for (const { function: called } of calls) text += `\n${toolCallText(called.name, called.arguments)}`;
    text += dropped ?? '';
    if (stopText !== undefined) return idsOf(text + stopText);
    const ids = [...idsOf(text), stopId ?? vocabulary.special.imEnd];
    return Int32Array.from(cut === undefined ? ids : ids.slice(0, Math.min(cut, ids.length - 1)));
  }

  /** Returns the message of a reply with ids for its tool calls. The ids are numbered over all replies, as some engines do. */
  private messageOf({ message }: ScriptedReply): AssistantMessage {
    const calls = message.tool_calls?.map((call): ToolCall => ({ ...call, id: `functions.${this.calls++}` }));
    return { role: 'assistant', ...message, ...(calls === undefined ? {} : { tool_calls: calls }) };
  }
}

function endOf(
  { message, cut, stopText }: ScriptedReply,
  ids: Int32Array,
): { finishReason: FinishReason; stop: StopCause | null } {
  if (cut !== undefined) return { finishReason: 'length', stop: null };
  if (stopText !== undefined) return { finishReason: 'stop', stop: { kind: 'string', text: stopText } };
  const finishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
  return { finishReason, stop: { kind: 'token', id: ids.at(-1) ?? 0 } };
}

function checkJson(ids: Int32Array, json: Buffer): void {
  const written = createHash('sha256').update(json).digest('hex');
  const expected = createHash('sha256')
    .update([...ids].join(','))
    .digest('hex');
  if (written !== expected) throw new FloeError('engine_error', 'the JSON text of a prompt is not its ids');
}

export function called(name: string, args: string): ToolCall {
  return { id: '', type: 'function', function: { name, arguments: args } };
}
