import { FloeError } from '../../core/errors.ts';
import type { CallNames, GenerateReply, PromptIds } from '../../engines/engine.ts';
import type { EnginePool, PoolMode } from '../../engines/pool.ts';
import type { Capture, CaptureMode, TaskEngine } from '../../schema/index.ts';
import type { Completion, CompletionRequest } from '../../tokens/completion.ts';
import { sameIds } from '../../tokens/sequence.ts';
import { EngineMessages } from './engine-messages.ts';
import { Conversations, endOf, type Found, type TurnNames } from './prefix-index.ts';
import { type BuiltPrompt, holdsPictures, type PromptRequest, Prompts } from './prompts.ts';
import { anyThinking, holdsThinking } from './retention.ts';
import type { Suffixes } from './suffix-renderer.ts';

/** One call's place in its conversation, told when the request arrives. */
export type Asked = { readonly thread: string; readonly request: CompletionRequest; readonly found: Found };

/** What an engine is asked with. */
export type Question = {
  readonly mode: CaptureMode;
  readonly fingerprint: string | null;
  /** The request's messages as the engine takes them. */
  readonly texts: readonly string[];
  /** Null: the engine renders the messages. */
  readonly built: BuiltPrompt | null;
};

/** How the model calls of one session are prompted. */
export class Prompting {
  private readonly engine: TaskEngine;
  private readonly engines: EnginePool;
  private readonly conversations = new Conversations();
  private readonly messages: EngineMessages;
  private readonly prompts: Prompts;

  /** `recorded`: the session's completion of that id. */
  constructor(
    engine: TaskEngine,
    engines: EnginePool,
    suffixes: Suffixes,
    recorded: (completionId: string) => Completion | null,
  ) {
    this.engine = engine;
    this.engines = engines;
    this.messages = new EngineMessages(recorded);
    this.prompts = new Prompts(engines, suffixes);
  }

  /** Where the request goes on from, by what is recorded now. */
  find(thread: string, request: CompletionRequest, names: TurnNames): Asked {
    return { thread, request, found: this.conversations.find({ thread, ...request }, names) };
  }

  /** The replies that a request goes on from are those that the harness used. */
  use({ found }: Asked): Completion[] {
    const used: Completion[] = [];
    for (let known = found.last; known !== null; known = known.before) {
      known.turn.used = true;
      used.push(known.turn.completion);
    }
    return used;
  }

  /** Rejects as `EnginePool.ready`, `EnginePool.modeOf` and `EnginePool.render` do. */
  async question(names: CallNames, asked: Asked, signal: AbortSignal): Promise<Question> {
    await this.engines.ready(this.engine.pool, signal);
    const pooled = this.engines.modeOf(this.engine.pool, this.engine.mode);
    const { fingerprint } = pooled.template;
    const { mode, prompt } = this.prompted(names, asked, pooled);
    const built = prompt && (await this.prompts.build(prompt, signal));
    return { mode, fingerprint, texts: this.texts(asked), built };
  }

  /** The length of the prompt that the engine would be given; null: the engine is to count. Rejects as {@link question} does. */
  async count(names: CallNames, asked: Asked, signal: AbortSignal): Promise<number | null> {
    const { prompt } = this.prompted(names, asked, this.engines.modeOf(this.engine.pool, this.engine.mode));
    return prompt && this.prompts.count(prompt, signal);
  }

  texts({ request, found }: Asked): readonly string[] {
    return this.messages.texts(request.messages, request.messageTexts, found.last);
  }

  captureOf({ mode, built }: Question, reply: GenerateReply): Capture {
    return {
      mode,
      logprobs_mode: reply.logprobsMode,
      thinking_retention: mode === 'tokens' ? this.engine.thinking_retention : 'template',
      spliced_onto: built?.onto?.turn.completion.completionId ?? null,
      rendered_because: built === null ? 'chat_mode' : built.because,
    };
  }

  /** A completion that is durable: later requests may go on from it. */
  add(completion: Completion, { found, request }: Asked, { built, fingerprint }: Question): void {
    const onto = built?.onto ?? null;
    const behind = onto === null ? request.messages : request.messages.slice(endOf(onto));
    const thinks = onto?.turn.thinks === true || anyThinking(behind) || holdsThinking(completion.message);
    this.conversations.add({ completion, thinks, fingerprint }, found.last);
  }

  private prompted(
    names: CallNames,
    asked: Asked,
    { mode, template }: PoolMode,
  ): { readonly mode: CaptureMode; readonly prompt: PromptRequest | null } {
    if (mode !== 'tokens') return { mode, prompt: null };
    // Pictures reach a model beside its ids: only the engine can put them into a prompt.
    if (holdsPictures(asked.request.messages)) return { mode: 'chat', prompt: null };
    const retention = this.engine.thinking_retention;
    return { mode, prompt: { ...asked, names, texts: this.texts(asked), template, retention } };
  }
}

/**
 * The prompt that the reply was sampled after: the one that was sent. Throws `engine_error` when the engine tells of another.
 */
export function promptOf({ ids }: PromptIds, { promptIds }: GenerateReply, engineId: string): Int32Array {
  if (promptIds.length === ids.length && sameIds(promptIds, 0, ids, 0, ids.length)) return ids;
  throw new FloeError('engine_error', `engine ${engineId} was prompted with other ids than it was sent`, {
    engine_id: engineId,
  });
}
