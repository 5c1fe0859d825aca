import type { FloeError } from '../core/errors.ts';
import type { ReplyDelta } from '../core/reply.ts';
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
export type RouteKind = 'generate' | 'count_tokens' | 'models' | 'model' | 'probe';

export type Route = {
  readonly method: 'GET' | 'POST' | 'HEAD';
  /** Path after any `/s/<key>` prefix and without the query; `{model}` stands for one path segment up to the text behind it. */
  readonly path: string;
  readonly kind: RouteKind;
  /** Where the path itself says whether the reply is streamed. */
  readonly stream?: boolean;
};

export type Headers = Readonly<Record<string, string | string[] | undefined>>;

/** A reply that the session handed out before. */
export type RecordedReply = { readonly message: AssistantMessage; readonly callKind: CallKind };

/** What a request says outside of its body, and what its session has for it to refer to. */
export type CallContext = {
  readonly headers: Headers;
  readonly query: URLSearchParams;
  /** The model in the path; null where the dialect has it in the body. */
  readonly model: string | null;
  /** Whether the path asks for a stream; null where the body says it. */
  readonly stream: boolean | null;
  /** The session's reply of that completion id; null when it handed out none. Absent: it handed out no reply at all. */
  readonly recorded?: (completionId: string) => RecordedReply | null;
};

/** How the client declared a tool that the canonical form can only hold as a plain function. */
export type ToolForm =
  /** OpenAI Responses `custom`: its input is free text, canonically the argument `input`. In a namespace both names are set. */
  | { readonly kind: 'custom'; readonly namespace?: string; readonly name?: string }
  /** OpenAI Responses `namespace`: called by `name`, with the namespace beside it. */
  | { readonly kind: 'namespaced'; readonly namespace: string; readonly name: string };

/** How a reply is to be written, where only the dialect that parsed the request knows. */
export type ReplyShape = {
  /** OpenAI Responses: the id of the response that this one goes on from, as the client gave it. */
  readonly previousResponse: string | null;
  /** OpenAI Responses: the reply is the summary in a compaction item. */
  readonly compaction: boolean;
  /** OpenAI Responses: thinking also goes into `encrypted_content`, for clients that send nothing else back. */
  readonly sealedThinking: boolean;
};

/** A harness's request in canonical form. */
export type CanonicalRequest = {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  /** By canonical tool name; holds only the tools that are no plain functions. */
  readonly toolForms: ReadonlyMap<string, ToolForm>;
  readonly toolChoice: ToolChoice | null;
  readonly parallelToolCalls: boolean | null;
  readonly samplingAsked: SamplingAsked;
  readonly stream: boolean;
  /** Gemini without `alt=sse`: the stream is one JSON array. */
  readonly streamAsArray?: true;
  /** OpenAI chat: the client asked for a usage chunk at the end of the stream. */
  readonly streamUsage: boolean;
  /** The completion of this session whose conversation `messages` go on from; null: `messages` are all of it. */
  readonly continues: string | null;
  /** With `continues`: the tools are that completion's, since a request of this kind has none of its own. */
  readonly continuesTools?: true;
  readonly replyShape?: ReplyShape;
  /** The completion that a turn is, as its signatures say, which anybody can write. */
  readonly turnRefs?: ReadonlyMap<ChatMessage, string>;
  /** What was dropped or changed in translation, one short phrase each. */
  readonly adjusted: readonly string[];
  /** The harness's own agent thread; `main` when it names none. */
  readonly thread: string;
  /** From headers where the harness sends them, else from the request's shape; `main` in doubt. */
  readonly callKind: CallKind;
};

/** What is known of a reply when its first token is. */
export type ReplyHead = {
  readonly completionId: string;
  /** The model name that the harness asked for. */
  readonly model: string;
  readonly createdMs: number;
  readonly promptTokens: number | null;
};

/** An engine's reply in canonical form, as the harness is to see it. */
export type CanonicalReply = ReplyHead & {
  readonly message: AssistantMessage;
  readonly finishReason: FinishReason;
  /** The stop string that ended the reply, if one did. */
  readonly stopText: string | null;
  readonly usage: Usage;
};

/** The end of a streamed reply in two pieces; the proxy writes `end` only after the completion is durable. */
export type StreamEnd = {
  /** What closes the parts that are open: everything up to, but not including, the events that tell that the reply is complete. */
  readonly body: string;
  readonly end: string;
};

/**
 * One streamed reply in the making. The calls come as `start`, any number of `delta`, `end`, each once in that order but for
 * `delta`; each returns the text to send, which may be empty. The deltas add up to the message that `end` is given.
 */
export interface ReplyStream {
  start(): string;
  delta(delta: ReplyDelta): string;
  end(reply: CanonicalReply): StreamEnd;
}

export type StreamFraming = {
  readonly contentType: string;
  /** Text that resets the client's idle timer and changes nothing; may come at any time before the end. */
  readonly heartbeat: string;
  /** Clients take nothing before the start of the reply; where nothing is known of it yet, the start is the first heartbeat. */
  readonly startsFirst?: boolean;
};

/**
 * One wire format that harnesses speak. Pure: no I/O, no clock, may be called any number of times.
 * `parseRequest` throws FloeError (`schema_violation`, `unsupported`); nothing else throws.
 */
export interface Dialect {
  readonly name: DialectName;
  readonly routes: readonly Route[];
  parseRequest(body: unknown, context: CallContext): CanonicalRequest;
  /** The body of `count_tokens`, which may lack what only a generation needs. */
  parseCount(body: unknown, context: CallContext): CanonicalRequest;
  /** The whole reply as a JSON body. */
  encodeReply(reply: CanonicalReply, request: CanonicalRequest): string;
  /** The same reply as a stream. */
  openStream(head: ReplyHead, request: CanonicalRequest): ReplyStream;
  framing(request: CanonicalRequest): StreamFraming;
  /** `GET` of the model list, with the one model that there is. */
  encodeModels(model: string, maxModelLen: number | null): string;
  /** `GET` of that one model. */
  encodeModel(model: string, maxModelLen: number | null): string;
  /** The answer to `count_tokens`. */
  encodeCount(tokens: number): string;
  /** An error as this dialect's clients expect it, for a response without a stream. */
  encodeError(error: FloeError): { readonly status: number; readonly body: string };
  /** The same inside a stream that has begun. */
  encodeStreamError(error: FloeError, request: CanonicalRequest): string;
}

/** A context with nothing but headers, as requests have whose dialect keeps everything in the body. */
export function plainContext(headers: Headers = {}): CallContext {
  return { headers, query: new URLSearchParams(), model: null, stream: null };
}
