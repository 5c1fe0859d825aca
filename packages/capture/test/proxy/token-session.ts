import { systemClock } from '@floe-rl/core';
import { type ChatMessage, samplingSchema, type TaskEngine, taskEngineSchema } from '@floe-rl/core/schema';
import type { CanonicalRequest } from '../../src/dialects/dialect.ts';
import { openaiChat } from '../../src/dialects/openai_chat/dialect.ts';
import { SuffixRenderer } from '../../src/proxy/prompt/suffix-renderer.ts';
import { ProxySession } from '../../src/proxy/session/session.ts';
import type { Completion } from '../../src/tokens/completion.ts';
import { HandJournal } from './rig.ts';
import type { ScriptedReply, TemplatePool } from './template-pool.ts';

const EMPTY: CanonicalRequest = {
  model: 'policy',
  messages: [],
  tools: [],
  toolForms: new Map(),
  toolChoice: null,
  parallelToolCalls: null,
  samplingAsked: {},
  stream: false,
  streamUsage: true,
  previousCompletionId: null,
  adjusted: [],
  thread: 'main',
  callKind: 'main',
};

export type AskOptions = Partial<Omit<CanonicalRequest, 'messages'>>;

/** A session of the proxy that is used without HTTP: it takes parsed requests and returns completions. */
export class TokenSession {
  readonly pool: TemplatePool;
  readonly calls: ProxySession;
  readonly notices: string[] = [];
  private asked = 0;

  constructor(pool: TemplatePool, engine: Partial<TaskEngine> = {}) {
    this.pool = pool;
    this.calls = new ProxySession(
      {
        sessionId: 'ses_1',
        attempt: 0,
        sampleIndex: 0,
        key: 'key',
        socketPath: null,
        modelName: 'policy',
        sampling: samplingSchema.parse({}),
        engine: taskEngineSchema.parse(engine),
      },
      {
        clock: systemClock,
        engines: pool.asPool,
        journal: new HandJournal(),
        suffixes: new SuffixRenderer(pool.asPool, (message) => void this.notices.push(message)),
        abandonGraceMs: 1_000,
      },
    );
  }

  /**
   * Sends a request with these messages and returns the recorded completion. The messages are copied, since a harness also sends new
   * objects in every request. `scripted` is the reply that the simulated policy samples.
   */
  ask(messages: readonly ChatMessage[], scripted?: ScriptedReply, options: AskOptions = {}): Promise<Completion> {
    if (scripted !== undefined) this.pool.replies.push(scripted);
    return this.calls.admission.begin(
      { digest: `digest ${this.asked++}`, isRetry: false },
      openaiChat,
      this.requestOf(messages, options),
    ).outcome;
  }

  requestOf(messages: readonly ChatMessage[], options: AskOptions = {}): CanonicalRequest {
    const own = messages.map((message) => JSON.parse(JSON.stringify(message)) as ChatMessage);
    const claimedCompletions =
      options.claimedCompletions &&
      new Map([...options.claimedCompletions].map(([at, id]) => [own[messages.indexOf(at)], id]));
    return {
      ...EMPTY,
      ...options,
      messages: own,
      ...(claimedCompletions ? { claimedCompletions } : {}),
    } as CanonicalRequest;
  }
}

export const user = (content: string): ChatMessage => ({ role: 'user', content });
export const result = (id: string, content: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content });

/** Makes one tool-result message for each tool call of a completion. */
export const resultsOf = ({ message }: Completion, content = 'done'): ChatMessage[] =>
  (message.tool_calls ?? []).map(({ id }, index) => result(id, `${content} ${index}`));

/** Returns the ids of a completion's prompt and response. The prompt of a call that continues the completion must begin with them. */
export function recordedIds({ promptIds, responseIds }: Completion): number[] {
  return [...promptIds, ...responseIds];
}
