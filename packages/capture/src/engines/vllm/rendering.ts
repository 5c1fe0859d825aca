import { z } from 'zod';
import { scanIds } from '../chat/reply-scan.ts';
import { idsFrom, idsSchema, invalidReply, parseReplyJson, parseWith } from '../chat/reply-tokens.ts';
import { constraintKindOf } from '../constraint.ts';
import type { GenerateRequest, RenderRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { choiceFields, conversationJson, RENDER_PATH, renderBody } from './request.ts';
import type { ServerFacts } from './server-facts.ts';

const renderedSchema = z.looseObject({ token_ids: idsSchema, features: z.unknown().optional() });
const tokenizedSchema = z.looseObject({ tokens: idsSchema, count: z.int().min(0).nullish() });
const countSchema = z.looseObject({ count: z.int().min(0) });
const textSchema = z.looseObject({ prompt: z.string() });
const samplingSchema = z.looseObject({
  sampling_params: z.looseObject({ structured_outputs: z.looseObject({}).nullish() }),
  reasoning_parser_kwargs: z.looseObject({}).nullish(),
});

/**
 * Renders messages to token ids with the server's chat template. Rejects with `unsupported` when the server cannot render messages, and for
 * messages with images.
 */
export async function render(
  server: EngineServer,
  { model, routes }: ServerFacts,
  request: RenderRequest,
  signal: AbortSignal,
): Promise<Int32Array> {
  const body = renderBody(model, request);
  if (routes.render) {
    const reply = await server.post(RENDER_PATH, body, request, signal);
    return renderedIds(server, await reply.read());
  }
  if (!routes.tokenize) throw server.error('unsupported', 'it has neither /tokenize nor a renderer');
  const reply = await server.post('/tokenize', body, request, signal);
  const bytes = await reply.read();
  const scanned = scanIds(bytes, 'tokens');
  const { tokens, count } = parseWith(tokenizedSchema, parseReplyJson(bytes, scanned));
  const ids = idsFrom(tokens, scanned, 'tokens');
  if ((count ?? ids.length) !== ids.length) throw invalidReply(`tokens has ${ids.length} ids, but count is ${count}`);
  return ids;
}

function renderedIds(server: EngineServer, bytes: Buffer): Int32Array {
  const scanned = scanIds(bytes, 'token_ids');
  const { token_ids: ids, features } = parseWith(renderedSchema, parseReplyJson(bytes, scanned));
  // The token ids of an image are only placeholders, so a prompt of these ids would contain no image.
  if (features !== null && features !== undefined) {
    throw server.error('unsupported', 'messages with images cannot be given as token ids', { field: 'features' });
  }
  return idsFrom(ids, scanned, 'token_ids');
}

/** Counts the prompt tokens of messages and tools, including the generation prompt. */
export async function countTokens(
  server: EngineServer,
  facts: ServerFacts,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<number> {
  const rendering = { ...request, generationPrompt: true };
  if (!facts.routes.tokenize) return (await render(server, facts, rendering, signal)).length;
  const reply = await server.post('/tokenize', renderBody(facts.model, rendering), request, signal);
  return parseWith(countSchema, parseReplyJson(await reply.read(), null)).count;
}

/** Converts token ids to text, including the text of special tokens. */
export async function detokenize(
  server: EngineServer,
  { model, routes }: ServerFacts,
  ids: Int32Array,
  signal: AbortSignal,
): Promise<string> {
  if (!routes.detokenize) throw server.error('unsupported', 'it has no /detokenize');
  const body = `{"model":${JSON.stringify(model)},"tokens":[${ids.join(',')}]}`;
  const reply = await server.post('/detokenize', body, null, signal);
  return parseWith(textSchema, parseReplyJson(await reply.read(), null)).prompt;
}

/**
 * Restricts what the sampler may produce to a forced tool call or a response format. Each value is the JSON text of a field in the request
 * to `/inference/v1/generate`.
 */
export type Constraint = {
  readonly structuredOutputs: string;
  /**
   * Parameters of the server's reasoning parser; `null` for the defaults. The parser detects where the thinking ends. The output is constrained
   * only after this place.
   */
  readonly reasoningParser: string | null;
};

/**
 * Determines the constraint of a request; `null` when the request forces no tool call and has no response format. The notation of
 * constraints differs between vLLM releases and tool parsers. So the server renders the request, and the sampling parameters in the
 * rendering are used. Rejects with `unsupported` when the rendering does not contain a constraint.
 */
export async function constraintOf(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<Constraint | null> {
  const { responseFormat } = request;
  const field = constraintKindOf(request);
  if (field === null) return null;
  const rest = JSON.stringify({
    ...choiceFields(request),
    ...(responseFormat === null ? {} : { response_format: responseFormat }),
    max_tokens: 1,
  });
  const body = `${conversationJson(model, request.messageTexts, request.toolsText)},${rest.slice(1)}`;
  const reply = await server.post(RENDER_PATH, body, request, signal);
  const rendered = parseWith(samplingSchema, parseReplyJson(await reply.read(), null));
  const { structured_outputs: outputs } = rendered.sampling_params;
  if (outputs === null || outputs === undefined) {
    throw server.error('unsupported', `it does not report how ${field} applies to a prompt of token ids`, { field });
  }
  const parser = rendered.reasoning_parser_kwargs ?? null;
  return {
    structuredOutputs: JSON.stringify(outputs),
    reasoningParser: parser === null ? null : JSON.stringify(parser),
  };
}
