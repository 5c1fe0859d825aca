import type { Clock } from '@floe-rl/core';
import type { AssistantMessage, FinishReason, StopCause } from '@floe-rl/core/schema';
import type { ReplyEnds } from '../chat/checked-reply.ts';
import { isEventStream } from '../chat/event-stream.ts';
import { hasImage } from '../chat/messages.ts';
import { IdScanner } from '../chat/reply-scan.ts';
import { assertReplyModel, concatIds } from '../chat/reply-tokens.ts';
import { forcesCall } from '../constraint.ts';
import type { GenerateRequest, ReplyListener, SampledTokens } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { EngineVersions } from '../versions.ts';
import { parseChatReply, promptKeyOf } from './chat-reply.ts';
import type { Profile } from './probe.ts';
import { assertSentPrompt, type ChatReply, parseNativeReply, type SampledReply } from './reply.ts';
import { chatBody, nativeBody } from './request.ts';
import { readModels } from './server-facts.ts';
import { chatStream } from './stream.ts';
import { TextReader, withCountedIds } from './text-reader.ts';

/** A reply with its message. For a resumed reply the message covers all tokens, and the other fields cover only the tokens of the last call. */
export type ReadReply = SampledReply & { readonly message: AssistantMessage };

/** Samples replies with the endpoints that the server's profile selects. */
export class Sampler {
  private readonly server: EngineServer;
  private readonly profile: Profile;
  private readonly scanner = new IdScanner();
  private readonly reader: TextReader;
  /**
   * Reads the name of the model that the server lists, and caches it in the same way as a policy version. The name is needed because
   * replies of `/generate` do not name their model.
   */
  private readonly listedModel: EngineVersions;

  constructor(server: EngineServer, profile: Profile, clock: Clock) {
    this.server = server;
    this.profile = profile;
    this.reader = new TextReader(server, profile.parsers, profile.opening);
    this.listedModel = new EngineVersions(clock, async () => {
      const { data } = await readModels(server);
      const entry = data.find(({ id }) => id === profile.facts.model) ?? data[0];
      return { status: 200, body: Buffer.from(JSON.stringify({ weight_version: entry?.id ?? null })) };
    });
  }

  /**
   * Samples one reply. `maxTokens` is the maximum number of tokens that this call may sample, without the tokens of `resumeFrom`. Rejects as
   * `Engine.generate` does.
   */
  async sample(
    request: GenerateRequest,
    maxTokens: number | null,
    listener: ReplyListener | undefined,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const { prompt, resumeFrom } = request;
    if (prompt === null) return this.chat(request, maxTokens, listener, signal);
    this.assertSupported(request);
    const sent = resumeFrom === null ? prompt.ids : concatIds(prompt.ids, resumeFrom.responseIds);
    if (this.profile.tokenInput === 'generate') return this.native(request, sent, maxTokens, signal);
    const reply = await this.chat(request, maxTokens, resumeFrom === null ? listener : undefined, signal);
    assertSentPrompt(sent, reply.promptIds);
    if (resumeFrom !== null) return this.readResumed(request, resumeFrom, reply, signal);
    return { ...reply, message: withCountedIds(reply.message, this.profile.parsers, request) };
  }

  /** Parses the message from the tokens of `resumeFrom`, for a reply that has already reached its token limit. */
  async readAtBound(
    request: GenerateRequest,
    resumeFrom: SampledTokens,
    signal: AbortSignal,
  ): Promise<AssistantMessage> {
    return this.server.finishing(signal, async (late) => {
      const text = await this.textOf(resumeFrom.responseIds, null, late, request);
      return this.reader.read(text, request, late);
    });
  }

  /** Throws `unsupported` when the server cannot answer a request whose prompt is given as token ids. */
  private assertSupported(request: GenerateRequest): void {
    const { tokenInput, canReadText } = this.profile;
    if (tokenInput === 'none') throw this.server.error('unsupported', 'it accepts no prompt of ids');
    if (request.resumeFrom !== null && !canReadText) {
      const reason = 'it does not parse text independently of sampling, so that a reply cannot be resumed';
      throw this.server.error('unsupported', reason);
    }
    if (request.messageTexts.some(hasImage)) {
      throw this.server.error('unsupported', 'a prompt of ids leaves images out', { images: true });
    }
    if (tokenInput === 'generate' && forcesCall(request)) {
      throw this.server.error('unsupported', 'tool_choice: /generate cannot be forced to call a tool', {
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
    const { chat, experts, facts, salt } = this.profile;
    const flags = (listener === undefined ? null : chat.streamFlags) ?? chat.flags;
    const stream = listener !== undefined && chat.streamFlags !== null;
    const salted = salt === 'refused' ? { ...request, policyVersion: null } : request;
    const body = chatBody(facts.model, salted, { flags, stream, maxTokens, experts });
    const reply = await this.server.post('/v1/chat/completions', body, request, signal);
    const options = { promptKey: promptKeyOf(flags), ends: this.endsOf(request), model: facts.model };
    if (!stream || !isEventStream(reply)) return parseChatReply(await reply.read(), request, this.scanner, options);
    const reader = chatStream(request, this.scanner, listener, options);
    await reply.each((bytes) => reader.push(bytes));
    return reader.reply();
  }

  private async native(
    request: GenerateRequest,
    sent: Int32Array,
    maxTokens: number | null,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const { native, experts, facts } = this.profile;
    const body = nativeBody(request, { maxTokens, seed: native?.seed === true, experts });
    const answer = await this.server.post('/generate', body, request, signal);
    const { text, ...reply } = parseNativeReply(
      await answer.read(),
      { completionId: request.completionId, sessionId: request.sessionId, sent },
      this.scanner,
      this.endsOf(request),
    );
    assertSentPrompt(sent, reply.promptIds);
    assertReplyModel(await this.listedModel.afterReply(), new Set([facts.model]));
    if (request.resumeFrom !== null) return this.readResumed(request, request.resumeFrom, reply, signal);
    return withMessage(reply, await this.server.finishing(signal, (late) => this.reader.read(text, request, late)));
  }

  /** Adds the message to a resumed reply. The message is parsed from the text of all tokens, including the tokens of `first`. */
  private async readResumed(
    request: GenerateRequest,
    first: SampledTokens,
    reply: SampledReply,
    signal: AbortSignal,
  ): Promise<ReadReply> {
    const ids = concatIds(first.responseIds, reply.responseIds);
    return this.server.finishing(signal, async (late) => {
      const text = await this.textOf(ids, reply.stop, late, request);
      return withMessage(reply, await this.reader.read(text, request, late));
    });
  }

  /** Converts token ids to text, without the stop token or stop string that ended the reply, like the text in the server's own replies. */
  private async textOf(
    ids: Int32Array,
    stop: StopCause | null,
    signal: AbortSignal,
    request: GenerateRequest,
  ): Promise<string> {
    const { renderer } = this.profile;
    if (renderer === null) throw this.server.error('unsupported', 'it does not convert ids to text');
    const isStopIncluded = stop?.kind === 'token' && ids.at(-1) === stop.id;
    const text = await renderer.detokenize(isStopIncluded ? ids.subarray(0, -1) : ids, signal, request);
    const at = stop?.kind === 'string' ? text.indexOf(stop.text) : -1;
    return at < 0 ? text : text.slice(0, at);
  }

  private endsOf({ stop }: GenerateRequest): ReplyEnds {
    return { stop, closeIds: this.profile.template.close_ids };
  }
}

function withMessage(reply: SampledReply, message: AssistantMessage): ReadReply {
  const isStopped = reply.finishReason === 'stop' || reply.finishReason === 'tool_calls';
  const stopped: FinishReason = message.tool_calls === undefined ? 'stop' : 'tool_calls';
  return { ...reply, finishReason: isStopped ? stopped : reply.finishReason, message };
}
