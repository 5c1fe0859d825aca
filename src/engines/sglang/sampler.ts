import type { Clock } from '../../core/clock.ts';
import { FloeError } from '../../core/errors.ts';
import type { AssistantMessage, FinishReason, StopCause } from '../../schema/index.ts';
import type { GenerateRequest, ReplyListener, SampledTokens } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { isEventStream } from '../event-stream.ts';
import { IdScanner } from '../id-scan.ts';
import { refuseForeignModel } from '../record.ts';
import { EngineVersions } from '../versions.ts';
import { parseChatReply, promptKey } from './chat-reply.ts';
import { wholePrompt } from './continuation.ts';
import { type ChatReply, type ReplyEnds, refuseOtherPrompt, type SampledReply } from './facts.ts';
import { parseNativeReply } from './native-reply.ts';
import type { Profile } from './probe.ts';
import { chatBody, nativeBody } from './request.ts';
import { readModels } from './server-info.ts';
import { ChatStreamReader } from './stream.ts';
import { TextReader, withCountedIds } from './text-reader.ts';

/** A reply with its message; of one that goes on from `begun`, the message covers that too and the rest only what is new. */
export type ReadReply = SampledReply & { readonly message: AssistantMessage };

/** Samples replies by the ways that a server was found to have. */
export class Sampler {
  private readonly server: EngineServer;
  private readonly profile: Profile;
  private readonly scanner = new IdScanner();
  private readonly reader: TextReader;
  /** As the server lists it now: replies of `/generate` do not name their model. */
  private readonly served: EngineVersions;

  constructor(server: EngineServer, profile: Profile, clock: Clock) {
    this.server = server;
    this.profile = profile;
    this.reader = new TextReader(server, profile.parsers, profile.opening);
    this.served = new EngineVersions(clock, async () => {
      const { data } = await readModels(server);
      const found = data.find(({ id }) => id === profile.info.model) ?? data[0];
      return { status: 200, body: Buffer.from(JSON.stringify({ weight_version: found?.id ?? null })) };
    });
  }

  /** Rejects as `Engine.generate` does. `maxTokens` bounds what is sampled now. */
  async sample(
    request: GenerateRequest,
    maxTokens: number | null,
    listener: ReplyListener | undefined,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const salted = this.profile.salt === 'refused' ? { ...request, cacheSalt: null } : request;
    const { prompt, begun } = salted;
    if (prompt === null) return this.chat(salted, maxTokens, listener, signal);
    this.refuseImpossible(salted);
    const sent = wholePrompt(prompt, begun);
    if (this.profile.tokenInput === 'generate') return this.native(salted, sent, maxTokens, signal);
    const reply = await this.chat(salted, maxTokens, begun === null ? listener : undefined, signal);
    refuseOtherPrompt(sent, reply.promptIds);
    if (begun !== null) return this.read(salted, begun, reply, signal);
    return { ...reply, message: withCountedIds(reply.message, this.profile.parsers, salted) };
  }

  /** What was begun, when it leaves no room for more. */
  async readBegun(request: GenerateRequest, begun: SampledTokens, signal: AbortSignal): Promise<AssistantMessage> {
    const text = await this.textOf(begun.responseIds, null, signal, request);
    return this.reader.read(text, request, signal);
  }

  private refuseImpossible(request: GenerateRequest): void {
    const { tokenInput, readsText } = this.profile;
    if (tokenInput === 'none') throw this.server.fail('unsupported', 'it takes no prompt as ids');
    if (request.begun !== null && !readsText) {
      throw this.server.fail('unsupported', 'it does not parse text apart from sampling, so that a reply cannot go on');
    }
    if (request.messageTexts.some(hasImage)) {
      throw this.server.fail('unsupported', 'a prompt of ids leaves images out', { images: true });
    }
    const forced = request.toolChoice === 'required' || typeof request.toolChoice === 'object';
    if (tokenInput === 'generate' && forced && request.toolChoice !== null && request.tools.length > 0) {
      throw this.server.fail('unsupported', 'tool_choice: /generate cannot be made to call a tool', {
        field: 'tool_choice',
      });
    }
  }

  private async chat(
    request: GenerateRequest,
    maxTokens: number | null,
    listener: ReplyListener | undefined,
    signal: AbortSignal,
  ): Promise<ChatReply> {
    const { chat, experts, info } = this.profile;
    const flags = (listener === undefined ? null : chat.streamed) ?? chat.whole;
    const stream = listener !== undefined && chat.streamed !== null;
    const body = chatBody(info.model, request, { flags, stream, maxTokens, experts });
    const reply = await this.server.post('/v1/chat/completions', body, request, signal);
    const how = { key: promptKey(flags), ends: this.endsOf(request), model: info.model };
    if (!stream || !isEventStream(reply)) return parseChatReply(await reply.read(), request, this.scanner, how);
    const reader = new ChatStreamReader(request, this.scanner, listener, how);
    await reply.each((bytes) => reader.push(bytes));
    return reader.reply();
  }

  private async native(
    request: GenerateRequest,
    sent: Int32Array,
    maxTokens: number | null,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const { native, experts, info } = this.profile;
    const body = nativeBody(request, { maxTokens, seed: native?.seed === true, experts });
    const answer = await this.server.post('/generate', body, request, signal);
    const { text, ...reply } = parseNativeReply(
      await answer.read(),
      { completionId: request.completionId, sessionId: request.sessionId, sent },
      this.scanner,
      this.endsOf(request),
    );
    refuseOtherPrompt(sent, reply.promptIds);
    refuseForeignModel(await this.served.afterReply(), new Set([info.model]));
    if (request.begun !== null) return this.read(request, request.begun, reply, signal);
    return withMessage(reply, await this.reader.read(text, request, signal));
  }

  /** The message of all that was sampled of a reply, before and after it was broken off. */
  private async read(
    request: GenerateRequest,
    begun: SampledTokens,
    reply: SampledReply,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const ids = new Int32Array(begun.responseIds.length + reply.responseIds.length);
    ids.set(begun.responseIds);
    ids.set(reply.responseIds, begun.responseIds.length);
    const text = await this.textOf(ids, reply.stop, signal, request);
    return withMessage(reply, await this.reader.read(text, request, signal));
  }

  /** Without the token or the string that stopped it, as the server's own text is. */
  private async textOf(
    ids: Int32Array,
    stop: StopCause | null,
    signal: AbortSignal,
    request: GenerateRequest,
  ): Promise<string> {
    const { renderer } = this.profile;
    if (renderer === null) throw this.server.fail('unsupported', 'it does not turn ids into text');
    const ended = stop?.kind === 'token' && ids.at(-1) === stop.id;
    const text = await renderer.detokenize(ended ? ids.subarray(0, -1) : ids, signal, request);
    const at = stop?.kind === 'string' ? text.indexOf(stop.text) : -1;
    return at < 0 ? text : text.slice(0, at);
  }

  private endsOf({ stop }: GenerateRequest): ReplyEnds {
    return { stop, closeIds: this.profile.template.close_ids };
  }
}

function withMessage(reply: SampledReply, message: AssistantMessage): ReadReply {
  const ended = reply.finishReason === 'stop' || reply.finishReason === 'tool_calls';
  const called: FinishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
  return { ...reply, finishReason: ended ? called : reply.finishReason, message };
}

/** Quotes within JSON strings are escaped, so this is a field of a content part. */
export function hasImage(messageText: string): boolean {
  return /[{,]\s*"image_url"\s*:/.test(messageText);
}

/** Whether a stream was refused because it has lost ids, as the next would. */
export function hasLostIds(error: unknown): error is FloeError {
  return FloeError.is(error) && error.details.lost_ids === true;
}
