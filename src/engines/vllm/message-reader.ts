import { type Clock, sleep } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage } from '../../schema/index.ts';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { derender, tailOf } from './derender.ts';
import type { TokenRequest } from './generate.ts';
import type { ServerFacts } from './probe.ts';
import type { ReplyContext } from './reply.ts';

const EMPTY: AssistantMessage = { role: 'assistant', content: '' };

/** Before each further try: what was sampled is worth a wait, and a busy server is free again within these or not at all. */
const PAUSES_MS = [50, 500, 2_000];

/** Reads messages out of what was sampled. The sample exists, so a server that cannot be reached is asked again, not sampled from anew. */
export class MessageReader {
  private readonly server: EngineServer;
  private readonly facts: ServerFacts;
  private readonly clock: Clock;

  constructor(server: EngineServer, facts: ServerFacts, clock: Clock) {
    this.server = server;
    this.facts = facts;
    this.clock = clock;
  }

  /**
   * Calls that the parsers refuse to read stay in the text, as in vLLM's chat. Rejects with `engine_error` for everything but the
   * signal: a caller that tried again would sample a second reply.
   */
  async read(
    request: TokenRequest,
    ids: Int32Array,
    finishReason: string,
    context: ReplyContext,
    signal: AbortSignal,
  ): Promise<AssistantMessage> {
    // A reply that ended at once says nothing, and the parsers refuse to read nothing.
    if (ids.length === 0) return EMPTY;
    const { model, unknownFields } = this.facts;
    const names = { ...context, model, includeReasoning: !unknownFields.has('include_reasoning') };
    const sampled = { promptTail: tailOf(request.prompt.ids), ids, finishReason };
    const attempt = (asked: GenerateRequest): Promise<AssistantMessage> =>
      this.patiently(() => derender(this.server, asked, sampled, names, signal), signal);
    try {
      return await attempt(request);
    } catch (error) {
      if (!isCode(error, 'engine_rejected')) throw this.final(error);
    }
    try {
      return await attempt({ ...request, toolChoice: 'none' });
    } catch (error) {
      throw this.final(error);
    }
  }

  private async patiently<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (const pauseMs of PAUSES_MS) {
      try {
        return await work();
      } catch (error) {
        if (!isCode(error, 'engine_unavailable')) throw error;
        await sleep(this.clock, pauseMs, signal);
      }
    }
    return work();
  }

  private final(error: unknown): unknown {
    if (!FloeError.is(error) || error.code === 'engine_error') return error;
    const what = `what it sampled could not be read: ${error.message}`;
    return this.server.fail('engine_error', what, { status: error.details.status });
  }
}

function isCode(error: unknown, code: FloeError['code']): boolean {
  return FloeError.is(error) && error.code === code;
}
