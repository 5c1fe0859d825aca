import type { FloeError } from '../core/errors.ts';
import type {
  AssistantMessage,
  CallKind,
  ChatMessage,
  ChatTool,
  DialectName,
  FinishReason,
  SamplingAsked,
  ToolChoice,
  Usage,
} from '../schema/index.ts';

/** What a path of a dialect means. Only `generate` ever reaches an engine's sampler. */
export type RouteKind = 'generate' | 'count_tokens' | 'models' | 'probe';

export type Route = {
  readonly method: 'GET' | 'POST' | 'HEAD';
  /** Exact path, after any `/s/<key>` prefix and without the query. */
  readonly path: string;
  readonly kind: RouteKind;
};

/** A harness's request in canonical form. */
export type CanonicalRequest = {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly samplingAsked: SamplingAsked;
  readonly stream: boolean;
  /** OpenAI chat: the client asked for a usage chunk at the end of the stream. */
  readonly streamUsage: boolean;
  /** What was dropped or changed in translation, one short phrase each. */
  readonly adjusted: readonly string[];
  /** The harness's own agent thread; `main` when it names none. */
  readonly thread: string;
  /** From headers where the harness sends them, else from the request's shape; `main` in doubt. */
  readonly callKind: CallKind;
};

/** An engine's reply in canonical form, as the harness is to see it. */
export type CanonicalReply = {
  readonly completionId: string;
  /** The model name that the harness asked for. */
  readonly model: string;
  readonly createdMs: number;
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  /** The stop string that ended the reply, if one did. */
  readonly stopText: string | null;
  readonly usage: Usage;
};

/** A complete streamed reply in three pieces; the proxy writes `end` only after the completion is durable. */
export type StreamedReply = {
  /** Everything up to, but not including, the events that tell the client that the reply is complete. */
  readonly body: string;
  readonly end: string;
};

/**
 * One wire format that harnesses speak. Pure: no I/O, no clock, may be called any number of times.
 * `parseRequest` throws FloeError (`schema_violation`, `unsupported`); nothing else throws.
 */
export interface Dialect {
  readonly name: DialectName;
  readonly routes: readonly Route[];
  /** Agent thread and call kind by header, where the harness sends them. */
  parseRequest(body: unknown, headers: Readonly<Record<string, string | string[] | undefined>>): CanonicalRequest;
  /** The whole reply as a JSON body. */
  encodeReply(reply: CanonicalReply): string;
  /** The same reply as server-sent events. */
  encodeStream(reply: CanonicalReply, request: CanonicalRequest): StreamedReply;
  /** One server-sent event that resets the client's idle timer and changes nothing. */
  readonly heartbeat: string;
  /** `GET` of the model list, with the one model that there is. */
  encodeModels(model: string, maxModelLen: number | null): string;
  /** The answer to `count_tokens`. */
  encodeCount(tokens: number): string;
  /** An error as this dialect's clients expect it, for a response without a stream. */
  encodeError(error: FloeError): { readonly status: number; readonly body: string };
  /** The same inside a stream that has begun. */
  encodeStreamError(error: FloeError): string;
}
