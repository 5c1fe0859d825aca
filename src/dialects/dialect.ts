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

/** Purpose of an HTTP path. Only calls of kind `generate` make an engine sample tokens. */
export type RouteKind = 'generate' | 'count_tokens' | 'models' | 'model' | 'probe';

export type Route = {
  readonly method: 'GET' | 'POST' | 'HEAD';
  /** Path without the `/s/<key>` prefix and without the query. `{model}` matches the model name, up to the text that follows it. */
  readonly path: string;
  readonly kind: RouteKind;
  /** Whether the reply is streamed. Left out when the request body states it. */
  readonly stream?: boolean;
};

export type Headers = Readonly<Record<string, string | string[] | undefined>>;

/** An earlier reply of the session, as it was sent to the harness. */
export type RecordedReply = { readonly message: AssistantMessage; readonly callKind: CallKind };

/** What a dialect needs, besides the body, to parse a request. */
export type CallContext = {
  readonly headers: Headers;
  readonly query: URLSearchParams;
  /** Name of the model in the path; `null` when this dialect puts it in the body. */
  readonly model: string | null;
  /** Whether the path requests a stream; `null` when the body states it. */
  readonly stream: boolean | null;
  /**
   * Returns the session's reply with this completion id, or `null` when the session sent no such reply. Left out when the session has
   * not sent any reply yet.
   */
  readonly recorded?: (completionId: string) => RecordedReply | null;
};

/** How the client declared a tool that is not a plain function. In canonical form such a tool is a function too. */
export type ToolForm =
  /**
   * A `custom` tool of an OpenAI dialect. Its input is free text, which is the argument `input` in canonical form. `namespace` and
   * `name` are set when the tool was declared inside a namespace.
   */
  | { readonly kind: 'custom'; readonly namespace?: string; readonly name?: string }
  /** A function inside an OpenAI Responses `namespace`. Calls carry its `name`, and the namespace in a separate field. */
  | { readonly kind: 'namespaced'; readonly namespace: string; readonly name: string };

/** Properties of a request that its dialect needs to encode the reply. */
type ReplyShape = {
  /** For OpenAI Responses: `previous_response_id` as the client sent it; `null` when it sent none. */
  readonly previousResponse: string | null;
  /** For OpenAI Responses: whether the reply is encoded as a compaction item that holds a summary. */
  readonly compaction: boolean;
  /** For OpenAI Responses: whether thinking is repeated in `encrypted_content`, because the client returns thinking in no other field. */
  readonly sealedThinking: boolean;
};

/** A harness's request in canonical form. */
export type CanonicalRequest = {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  /** How the client declared its tools, by canonical tool name. Contains only tools that were not declared as plain functions. */
  readonly toolForms: ReadonlyMap<string, ToolForm>;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly samplingAsked: RequestedSampling;
  readonly stream: boolean;
  /** For Gemini without `alt=sse`: the reply is streamed as one JSON array instead of events. */
  readonly streamAsArray?: true;
  /** For OpenAI chat: whether the client requested a usage chunk at the end of the stream. */
  readonly streamUsage: boolean;
  /** Id of the session's completion whose conversation `messages` continue; `null` when `messages` are the whole conversation. */
  readonly previousCompletionId: string | null;
  /** Set when the request continues `previousCompletionId`, has no tools, and uses the tools of that completion. */
  readonly inheritsTools?: true;
  readonly replyShape?: ReplyShape;
  /**
   * The completion id that each assistant message has in its signatures. A client can forge a signature, so the proxy checks the id
   * against its recordings.
   */
  readonly claimedCompletions?: ReadonlyMap<ChatMessage, string>;
  /** What the translation dropped or changed, one short phrase for each change. */
  readonly adjusted: readonly string[];
  /** Name of the agent thread that made the call; `main` for the main agent. */
  readonly thread: string;
  /** Purpose of the call. It is taken from headers if the harness sends them, otherwise from the prompt; `main` when in doubt. */
  readonly callKind: CallKind;
};

/** The properties of a reply that are available when its first token arrives. */
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

/** The last text of a streamed reply, in two parts. The proxy sends `body` immediately, and `end` only when the completion is durable. */
export type StreamEnd = {
  /** Closes the parts of the reply that are still open. It contains no event from which a client concludes that the reply is complete. */
  readonly body: string;
  readonly end: string;
};

/**
 * Encoder of one streamed reply. Callers call `start` once, `delta` any number of times, then `end` once; each returns the text to send,
 * which may be empty. The deltas together form the message that is passed to `end`.
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
  /** Set when clients reject events before the start of the reply. The start is then sent in place of the first heartbeat. */
  readonly startsFirst?: boolean;
};

/**
 * One wire format that harnesses use. All functions are pure: they do no I/O, read no clock, and return the same result for the same
 * arguments. The parsers throw FloeError (`schema_violation`, `unsupported`); the encoders do not throw.
 */
export interface Dialect {
  readonly name: DialectName;
  readonly routes: readonly Route[];
  parseRequest(body: unknown, context: CallContext): CanonicalRequest;
  /** Parses the body of a `count_tokens` request, in which fields that only a generation needs are optional. */
  parseCount(body: unknown, context: CallContext): CanonicalRequest;
  /** Encodes a whole reply as a JSON body. */
  encodeReply(reply: CanonicalReply, request: CanonicalRequest): string;
  /** Makes an encoder that encodes a reply as a stream. */
  openStream(head: ReplyHead, request: CanonicalRequest): ReplyStream;
  framing(request: CanonicalRequest): StreamFraming;
  /** Encodes the list of models, which contains only this model. `maxModelLen` is the context window in tokens, `null` when unknown. */
  encodeModels(model: string, maxModelLen: number | null): string;
  /** Encodes the description of one model. `maxModelLen` is the context window in tokens, `null` when unknown. */
  encodeModel(model: string, maxModelLen: number | null): string;
  /** Encodes the reply to a `count_tokens` request. */
  encodeCount(tokens: number): string;
  /** Encodes an error as the HTTP response that clients of this dialect expect. */
  encodeError(error: FloeError): { readonly status: number; readonly body: string };
  /** Encodes an error inside a stream that has already started. */
  encodeStreamError(error: FloeError, request: CanonicalRequest): string;
}

/** Makes a context that has only headers, for dialects that keep everything else in the body. */
export function plainContext(headers: Headers = {}): CallContext {
  return { headers, query: new URLSearchParams(), model: null, stream: null };
}
