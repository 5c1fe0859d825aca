import type { FloeError } from '@floe-rl/core';
import type {
  AssistantMessage,
  CallKind,
  CallRules,
  ChatMessage,
  ChatTool,
  DialectName,
  FinishReason,
  RequestedSampling,
  ToolChoice,
  Usage,
} from '@floe-rl/core/schema';
import type { ReplyDelta } from '../reply.ts';

/** Purpose of an HTTP path. Only requests to a path of kind `generate` make an engine sample tokens. */
export type RouteKind = 'generate' | 'count_tokens' | 'models' | 'model' | 'probe';

export type Route = {
  readonly method: 'GET' | 'POST' | 'HEAD';
  /**
   * URL path without the prefix `/s/<session key>` and without the query. `{model}` matches a model name, up to the text that follows
   * `{model}` in this path.
   */
  readonly path: string;
  readonly kind: RouteKind;
  /** Whether the reply is streamed. Absent for routes whose request body states this. */
  readonly stream?: boolean;
};

export type Headers = Readonly<Record<string, string | string[] | undefined>>;

/** An earlier reply of the session, as the harness received it. */
export type RecordedReply = { readonly message: AssistantMessage; readonly callKind: CallKind };

/** The information that a dialect needs to parse a request, in addition to the body. */
export type CallContext = {
  readonly headers: Headers;
  readonly query: URLSearchParams;
  /** The harness whose rules label the model call; `null` when no rules apply, so that every call is the main agent's work. */
  readonly callRules: CallRules | null;
  /** Name of the model in the URL path; `null` when the request body names the model. */
  readonly model: string | null;
  /** Whether the URL path requests a streamed reply; `null` when the request body states it. */
  readonly stream: boolean | null;
  /**
   * Returns the session's reply with this completion id, or `null` when the session sent no such reply. Left out when the session has
   * not sent any reply yet.
   */
  readonly recorded?: (completionId: string) => RecordedReply | null;
};

/** How the client declared a tool that is not a plain function. In floe's internal form the tool is a function. */
export type ToolForm =
  /**
   * A `custom` tool of an OpenAI dialect. Its input is free text, which becomes the function argument `input` in floe's internal form.
   * `namespace` and `name` are set when the tool was declared inside a namespace.
   */
  | { readonly kind: 'custom'; readonly namespace?: string; readonly name?: string }
  /**
   * A function that an OpenAI Responses client declared inside a `namespace`. A call to it contains `name` and, in a separate field,
   * `namespace`.
   */
  | { readonly kind: 'namespaced'; readonly namespace: string; readonly name: string };

/** Properties of a request that its dialect needs to encode the reply. */
type ReplyShape = {
  /** For OpenAI Responses: `previous_response_id` as the client sent it; `null` when it sent none. */
  readonly previousResponse: string | null;
  /** For OpenAI Responses: whether the reply is encoded as an item of type `compaction`, which contains a summary of the conversation. */
  readonly compaction: boolean;
  /**
   * For OpenAI Responses: whether the reply repeats its thinking in `encrypted_content`, the only field in which the client returns
   * thinking.
   */
  readonly sealedThinking: boolean;
};

/** A harness's request in canonical form: floe's internal form, which is the same for all dialects and resembles OpenAI chat. */
export type CanonicalRequest = {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  /**
   * How the client declared its tools, by the tool name in floe's internal form. Contains only tools that were not declared as plain
   * functions.
   */
  readonly toolForms: ReadonlyMap<string, ToolForm>;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly samplingAsked: RequestedSampling;
  readonly stream: boolean;
  /** For Gemini without `alt=sse`: the reply is streamed as one JSON array instead of events. */
  readonly streamAsArray?: true;
  /** For OpenAI chat: whether the client requested a usage chunk at the end of the stream. */
  readonly streamUsage: boolean;
  /** Id of the recorded reply (completion) whose conversation `messages` continue; `null` when `messages` are the whole conversation. */
  readonly previousCompletionId: string | null;
  /** Set when the request declares no tools and uses the tools of the recorded reply `previousCompletionId`. */
  readonly inheritsTools?: true;
  readonly replyShape?: ReplyShape;
  /**
   * The completion id that the client returned with each assistant message, in a signature or an item id. A client can forge an id, so the
   * proxy uses it only to choose between recorded replies with the same content.
   */
  readonly claimedCompletions?: ReadonlyMap<ChatMessage, string>;
  /** The things that the translation to the internal form dropped or changed, one short phrase for each. */
  readonly adjusted: readonly string[];
  /** Name of the agent thread that made the model call: `main` for the main agent, otherwise the name of a sub-agent. */
  readonly thread: string;
  /** Pool of engines that the agent names for the call; absent when the call uses the task's pool. */
  readonly enginePool?: string;
  /**
   * Purpose of the model call. It is taken from headers if the harness sends them, otherwise from the prompt; `main`, the work of the main
   * agent, when in doubt.
   */
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

/** An engine's reply in floe's internal form, ready to be encoded for the harness. */
export type CanonicalReply = ReplyHead & {
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  /** The stop string that ended the reply; `null` when the reply ended for another reason. */
  readonly stopText: string | null;
  readonly usage: Usage;
};

/**
 * The last text of a streamed reply, in two parts. The proxy sends `body` immediately, and `end` only after it has recorded the reply on
 * disk.
 */
export type StreamEnd = {
  /** Closes the parts of the reply that are still open. It contains no event from which a client concludes that the reply is complete. */
  readonly body: string;
  readonly end: string;
};

/**
 * Encoder of one streamed reply. Callers call `start` once, `delta` and `heartbeat` any number of times, then `end` or `fail` once; each
 * returns the text to send, which may be empty. The deltas together form the message that is passed to `end`. All texts of one encoder have
 * the same ids, model and time, because clients use these fields to merge the pieces of a stream.
 */
export interface ReplyStream {
  start(): string;
  delta(delta: ReplyDelta): string;
  /** Returns text that resets the idle timer of the client and has no other effect. It is never empty. */
  heartbeat(): string;
  end(reply: CanonicalReply): StreamEnd;
  /**
   * Encodes an error that ends the stream. Text that was held back is dropped. May be called without `start`, because some clients retry a
   * call only when the error is the first event.
   */
  fail(error: FloeError): string;
}

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
  /** Encodes a complete reply as a JSON body. */
  encodeReply(reply: CanonicalReply, request: CanonicalRequest): string;
  /** Makes an encoder that encodes a reply as a stream. */
  openStream(head: ReplyHead, request: CanonicalRequest): ReplyStream;
  /** Returns the content type of a streamed reply. */
  streamType(request: CanonicalRequest): string;
  /** Encodes the list of models, which contains only `model`. `maxModelLen` is the context window in tokens, `null` when unknown. */
  encodeModels(model: string, maxModelLen: number | null): string;
  /** Encodes the description of `model`. `maxModelLen` is the context window in tokens, `null` when unknown. */
  encodeModel(model: string, maxModelLen: number | null): string;
  /** Encodes the reply to a `count_tokens` request. */
  encodeCount(tokens: number): string;
  /** Encodes an error as the HTTP response that clients of this dialect expect. */
  encodeError(error: FloeError): { readonly status: number; readonly body: string };
}

/** Makes a request context that contains only headers and the rules that label the call. All other parts are in the body. */
export function plainContext(headers: Headers = {}, callRules: CallRules | null = null): CallContext {
  return { headers, query: new URLSearchParams(), callRules, model: null, stream: null };
}
