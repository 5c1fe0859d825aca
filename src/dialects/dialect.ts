import type { FloeError } from '../core/errors.ts';
import type { ReplyDelta } from '../core/reply.ts';
import type {
  AssistantMessage,
  CallKind,
  ChatMessage,
  ChatTool,
  DialectName,
  FinishReason,
  RequestedSampling,
  ToolChoice,
  Usage,
} from '../schema/index.ts';

/** Purpose of a path. Only `generate` makes an engine sample tokens. */
export type RouteKind = 'generate' | 'count_tokens' | 'models' | 'model' | 'probe';

export type Route = {
  readonly method: 'GET' | 'POST' | 'HEAD';
  /** Path without the `/s/<key>` prefix and without the query. `{model}` matches the model name up to the text that follows it. */
  readonly path: string;
  readonly kind: RouteKind;
  /** Whether the reply is streamed, where the path and not the body states it. */
  readonly stream?: boolean;
};

export type Headers = Readonly<Record<string, string | string[] | undefined>>;

/** An earlier reply of the session, as it was sent to the harness. */
export type RecordedReply = { readonly message: AssistantMessage; readonly callKind: CallKind };

/** Everything except the body that a dialect needs to parse a request. */
export type CallContext = {
  readonly headers: Headers;
  readonly query: URLSearchParams;
  /** Model named in the path; `null` when this dialect puts it in the body. */
  readonly model: string | null;
  /** Whether the path requests a stream; `null` when the body states it. */
  readonly stream: boolean | null;
  /**
   * Returns the session's reply with this completion id, `null` when the session sent no such reply. Left out when the session
   * has not sent any reply yet.
   */
  readonly recorded?: (completionId: string) => RecordedReply | null;
};

/** How the client declared a tool that is not a plain function. The canonical form represents it as a function all the same. */
export type ToolForm =
  /**
   * A `custom` tool of an OpenAI dialect: its input is free text, in canonical form the argument `input`. `namespace` and `name`
   * are both set when the tool was declared inside a namespace.
   */
  | { readonly kind: 'custom'; readonly namespace?: string; readonly name?: string }
  /** A function in an OpenAI Responses `namespace`: calls carry `name` and, in a separate field, the namespace. */
  | { readonly kind: 'namespaced'; readonly namespace: string; readonly name: string };

/** Properties of the request that the same dialect needs to encode the reply. */
type ReplyShape = {
  /** OpenAI Responses: `previous_response_id` as the client sent it; `null` when it sent none. */
  readonly previousResponse: string | null;
  /** OpenAI Responses: the reply is encoded as a compaction item that holds a summary. */
  readonly compaction: boolean;
  /** OpenAI Responses: thinking is repeated in `encrypted_content`, because the client returns nothing else of it. */
  readonly sealedThinking: boolean;
};

/** A harness's request in canonical form. */
export type CanonicalRequest = {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  /** By canonical tool name. Contains only tools that the client did not declare as plain functions. */
  readonly toolForms: ReadonlyMap<string, ToolForm>;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly samplingAsked: RequestedSampling;
  readonly stream: boolean;
  /** Gemini without `alt=sse`: the stream is one JSON array. */
  readonly streamAsArray?: true;
  /** OpenAI chat: the client requested a usage chunk at the end of the stream. */
  readonly streamUsage: boolean;
  /** The session's completion whose conversation `messages` continue; `null` when `messages` are the whole conversation. */
  readonly previousCompletionId: string | null;
  /** With `previousCompletionId`: the request has no tools and uses those of that completion. */
  readonly inheritsTools?: true;
  readonly replyShape?: ReplyShape;
  /**
   * The completion id that each assistant message has in its signatures. A client can forge a signature, so this is a claim that
   * the proxy checks against its recordings.
   */
  readonly claimedCompletions?: ReadonlyMap<ChatMessage, string>;
  /** What the translation dropped or changed, one short phrase each. */
  readonly adjusted: readonly string[];
  /** Name of the agent thread that the call belongs to; `main` for the main agent. */
  readonly thread: string;
  /** Purpose of the call: from headers if the harness sends them, otherwise from the prompt; `main` when in doubt. */
  readonly callKind: CallKind;
};

/** What is known of a reply when its first token arrives. */
export type ReplyHead = {
  readonly completionId: string;
  /** Model name as the harness requested it. */
  readonly model: string;
  readonly createdMs: number;
  readonly promptTokens: number | null;
};

/** An engine's reply in canonical form, ready to be encoded for the harness. */
export type CanonicalReply = ReplyHead & {
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  /** The stop string that ended the reply; `null` when it ended otherwise. */
  readonly stopText: string | null;
  readonly usage: Usage;
};

/** The end of a streamed reply. The proxy sends `body` right away, and `end` only once the completion is durable. */
export type StreamEnd = {
  /** Closes the parts that are still open. Contains no event from which a client concludes that the reply is complete. */
  readonly body: string;
  readonly end: string;
};

/**
 * Encoder of one streamed reply. Callers call `start` once, `delta` any number of times, then `end` once; each returns the text
 * to send, which may be empty. The deltas add up to the message that is passed to `end`.
 */
export interface ReplyStream {
  start(): string;
  delta(delta: ReplyDelta): string;
  end(reply: CanonicalReply): StreamEnd;
}

export type StreamFraming = {
  readonly contentType: string;
  /** Text that resets the client's idle timer and has no other effect. It may be sent at any time before the end. */
  readonly heartbeat: string;
  /** Clients reject events before the start of the reply, so the start is sent in place of the first heartbeat. */
  readonly startsFirst?: boolean;
};

/**
 * One wire format that harnesses use. All functions are pure: no I/O, no clock, repeatable. The parsers throw FloeError
 * (`schema_violation`, `unsupported`); the encoders do not throw.
 */
export interface Dialect {
  readonly name: DialectName;
  readonly routes: readonly Route[];
  parseRequest(body: unknown, context: CallContext): CanonicalRequest;
  /** Parses the body of a `count_tokens` request, in which fields that only a generation needs are optional. */
  parseCount(body: unknown, context: CallContext): CanonicalRequest;
  /** Encodes a whole reply as a JSON body. */
  encodeReply(reply: CanonicalReply, request: CanonicalRequest): string;
  /** Encodes the same reply as a stream. */
  openStream(head: ReplyHead, request: CanonicalRequest): ReplyStream;
  framing(request: CanonicalRequest): StreamFraming;
  /** Encodes the list of models, which contains exactly this one. `maxModelLen` is the context window in tokens, `null` when unknown. */
  encodeModels(model: string, maxModelLen: number | null): string;
  /** Encodes the description of that one model. */
  encodeModel(model: string, maxModelLen: number | null): string;
  /** Encodes the reply to a `count_tokens` request. */
  encodeCount(tokens: number): string;
  /** Encodes an error as the HTTP response that clients of this dialect expect. */
  encodeError(error: FloeError): { readonly status: number; readonly body: string };
  /** Encodes an error inside a stream that has already started. */
  encodeStreamError(error: FloeError, request: CanonicalRequest): string;
}

/** A context with headers only, for dialects that keep everything else in the body. */
export function plainContext(headers: Headers = {}): CallContext {
  return { headers, query: new URLSearchParams(), model: null, stream: null };
}
