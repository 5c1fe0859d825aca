import type { FloeError } from '../../core/errors.ts';
import type { ReplyDelta } from '../../core/reply.ts';
import type { CanonicalReply, CanonicalRequest, ReplyHead, ReplyStream, StreamEnd, StreamFraming } from '../dialect.ts';
import { harnessStatus } from '../errors.ts';
import { EVENT_STREAM } from '../server-sent.ts';
import { argsJson } from './call-arguments.ts';
import { signatureOf } from './thought-signature.ts';

export function encodeGenerateReply(reply: CanonicalReply): string {
  const { message } = reply;
  const writer = new PartWriter(reply.completionId);
  const parts: string[] = [];
  if (message.reasoning_content) parts.push(writer.thought(message.reasoning_content));
  if (message.content) parts.push(writer.text(message.content));
  for (const { id, function: called } of message.tool_calls ?? []) {
    parts.push(writer.call({ id, name: called.name, raw: called.arguments }));
  }
  return responseJson(reply, [...parts, ...writer.rest()], reply);
}

type WholeCall = { readonly id: string; readonly name: string; readonly raw: string };

/**
 * Writes the parts of a reply as JSON. The first part behind thinking carries it once more, as its signature; where nothing is
 * signed before, the first call is: some clients drop the ids of calls.
 */
class PartWriter {
  private readonly completionId: string;
  private unsigned = '';
  private signed = false;

  constructor(completionId: string) {
    this.completionId = completionId;
  }

  thought(text: string): string {
    this.unsigned += text;
    return JSON.stringify({ text, thought: true });
  }

  text(text: string): string {
    return JSON.stringify({ text, ...(this.unsigned === '' ? {} : this.signature()) });
  }

  /** Sampled arguments go into the text as they are. */
  call({ id, name, raw }: WholeCall): string {
    const head = JSON.stringify({ id, name }).slice(0, -1);
    const tail = this.signed && this.unsigned === '' ? '}' : JSON.stringify(this.signature()).slice(1);
    return `{"functionCall":${head},"args":${argsJson(raw)}}${tail === '}' ? '' : ','}${tail}`;
  }

  /** An empty text, as Google has it, where nothing follows the thinking. */
  rest(): string[] {
    return this.unsigned === '' ? [] : [this.text('')];
  }

  private signature(): { thoughtSignature: string } {
    const thoughtSignature = signatureOf(this.completionId, this.unsigned);
    this.unsigned = '';
    this.signed = true;
    return { thoughtSignature };
  }
}

export function openGenerateStream(head: ReplyHead, { streamAsArray }: CanonicalRequest): ReplyStream {
  return streamAsArray === true ? new ArrayStream(head) : new EventStream(head);
}

/** The responses that a stream consists of. Text and thinking are one as they come, a call when its arguments are complete. */
class ResponseSplitter {
  private readonly head: ReplyHead;
  private readonly writer: PartWriter;
  private call: { readonly id: string; readonly name: string; raw: string } | null = null;

  constructor(head: ReplyHead) {
    this.head = head;
    this.writer = new PartWriter(head.completionId);
  }

  delta(delta: ReplyDelta): string[] {
    switch (delta.kind) {
      case 'reasoning':
        return this.responses([...this.closeCall(), this.writer.thought(delta.text)]);
      case 'text':
        return this.responses([...this.closeCall(), this.writer.text(delta.text)]);
      case 'call': {
        const closed = this.closeCall();
        this.call = { id: delta.id, name: delta.name, raw: '' };
        return this.responses(closed);
      }
      case 'arguments':
        if (this.call !== null) this.call.raw += delta.text;
        return [];
    }
  }

  /** The last response: what is still open, and that the reply is complete. */
  end(reply: CanonicalReply): string {
    return responseJson(this.head, [...this.closeCall(), ...this.writer.rest()], reply);
  }

  private closeCall(): string[] {
    if (this.call === null) return [];
    const part = this.writer.call(this.call);
    this.call = null;
    return [part];
  }

  private responses(parts: readonly string[]): string[] {
    return parts.map((part) => responseJson(this.head, [part], null));
  }
}

/** Some clients run a call as soon as they have it, so calls and all behind them are held back until the completion is durable. */
class EventStream implements ReplyStream {
  private readonly splitter: ResponseSplitter;
  private held: string | null = null;

  constructor(head: ReplyHead) {
    this.splitter = new ResponseSplitter(head);
  }

  start(): string {
    return '';
  }

  delta(delta: ReplyDelta): string {
    if (delta.kind === 'call') this.held ??= '';
    const events = this.splitter.delta(delta).map(eventOf).join('');
    if (this.held === null) return events;
    this.held += events;
    return '';
  }

  end(reply: CanonicalReply): StreamEnd {
    return { body: '', end: (this.held ?? '') + eventOf(this.splitter.end(reply)) };
  }
}

/**
 * Sampled arguments may hold line breaks between two tokens of JSON, and a line break ends the data. The two of Unicode,
 * which only strings hold, do so for the clients that look for the end with a regular expression.
 */
function eventOf(json: string): string {
  const line = json
    .replace(/[\r\n]/g, ' ')
    .replace(/\u2028/g, '\\u2028')
    .replace(/\u2029/g, '\\u2029');
  return `data: ${line}\n\n`;
}

/**
 * The array is sent in one piece: until its end anything may still fail, and whether an error closes the array or is all of
 * it depends on what was sent before.
 */
class ArrayStream implements ReplyStream {
  private readonly splitter: ResponseSplitter;
  private readonly responses: string[] = [];

  constructor(head: ReplyHead) {
    this.splitter = new ResponseSplitter(head);
  }

  start(): string {
    return '';
  }

  delta(delta: ReplyDelta): string {
    this.responses.push(...this.splitter.delta(delta));
    return '';
  }

  end(reply: CanonicalReply): StreamEnd {
    return { body: '', end: `[${[...this.responses, this.splitter.end(reply)].join(',\n')}]` };
  }
}

/**
 * A response without any part makes `@google/genai` forget the whole turn; with an empty text it does not, and neither it
 * nor Gemini CLI shows one.
 */
const EMPTY_PART = '{"text":""}';

/** Never a comment, which Gemini CLI cannot read. */
const HEARTBEAT = `data: {"candidates":[{"content":{"parts":[${EMPTY_PART}],"role":"model"},"index":0}]}\n\n`;

export function generateFraming({ streamAsArray }: CanonicalRequest): StreamFraming {
  if (streamAsArray === true) return { contentType: 'application/json; charset=utf-8', heartbeat: '\n' };
  return { contentType: EVENT_STREAM, heartbeat: HEARTBEAT };
}

/** One GenerateContentResponse; `end` is what it is the last one of. */
function responseJson(head: ReplyHead, parts: readonly string[], end: CanonicalReply | null): string {
  const finish = end === null ? '' : `,"finishReason":"${finishOf(end)}"`;
  const tail = JSON.stringify({
    ...(end === null ? {} : { usageMetadata: usageOf(end) }),
    modelVersion: head.model,
    responseId: head.completionId,
  });
  const content = `{"parts":[${parts.join(',') || EMPTY_PART}],"role":"model"}`;
  return `{"candidates":[{"content":${content}${finish},"index":0}],${tail.slice(1)}`;
}

function finishOf({ finishReason }: CanonicalReply): string {
  switch (finishReason) {
    case 'stop':
    case 'tool_calls':
      return 'STOP';
    case 'length':
    case 'abort':
      return 'MAX_TOKENS';
  }
}

/** Thinking is part of what the candidate took: engines do not count it apart. */
function usageOf({ usage }: CanonicalReply): object {
  const { prompt_tokens, completion_tokens, cached_tokens } = usage;
  return {
    promptTokenCount: prompt_tokens,
    candidatesTokenCount: completion_tokens,
    ...(cached_tokens === null ? {} : { cachedContentTokenCount: cached_tokens }),
    totalTokenCount: prompt_tokens + completion_tokens,
  };
}

export function encodeGenerateError(error: FloeError): { status: number; body: string } {
  return { status: harnessStatus(error), body: JSON.stringify(errorObject(error)) };
}

/**
 * Bare JSON also among events: `@google/genai` up to 2.21, and with it Gemini CLI and pi, looks for an error only in pieces
 * of the response that are JSON by themselves, and takes an event with one for a response without candidates.
 */
export function encodeGenerateStreamError(error: FloeError, { streamAsArray }: CanonicalRequest): string {
  const body = JSON.stringify(errorObject(error));
  return streamAsArray === true ? `[${body}]` : body;
}

const RETRY_INFO = 'type.googleapis.com/google.rpc.RetryInfo';

function errorObject(error: FloeError): object {
  const code = harnessStatus(error);
  const wait = error.details.retry_after_ms;
  const details =
    typeof wait === 'number' && (code === 429 || code === 503)
      ? { details: [{ '@type': RETRY_INFO, retryDelay: `${Math.max(1, Math.ceil(wait / 1000))}s` }] }
      : {};
  return { error: { code, message: error.message, status: statusName(code), ...details } };
}

function statusName(code: number): string {
  switch (code) {
    case 401:
      return 'UNAUTHENTICATED';
    case 403:
      return 'PERMISSION_DENIED';
    case 404:
      return 'NOT_FOUND';
    case 409:
      return 'ABORTED';
    case 410:
      return 'FAILED_PRECONDITION';
    case 429:
      return 'RESOURCE_EXHAUSTED';
    case 503:
      return 'UNAVAILABLE';
    case 504:
      return 'DEADLINE_EXCEEDED';
    default:
      return code < 500 ? 'INVALID_ARGUMENT' : 'INTERNAL';
  }
}
