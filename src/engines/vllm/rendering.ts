import { z } from 'zod';
import type { GenerateRequest, RenderRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { scanIds } from '../id-scan.ts';
import { idsOf, idsSchema, parseReplyJson, refusal, shaped } from '../record.ts';
import { RENDER_PATH, type ServerFacts } from './probe.ts';
import { renderBody } from './request.ts';

const renderedSchema = z.looseObject({ token_ids: idsSchema, features: z.unknown().optional() });
const tokenizedSchema = z.looseObject({ tokens: idsSchema, count: z.int().min(0).nullish() });
const countSchema = z.looseObject({ count: z.int().min(0) });
const textSchema = z.looseObject({ prompt: z.string() });

/** Messages as ids, by the server's own template. Rejects with `unsupported` where it cannot, and for messages with images. */
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
  if (!routes.tokenize) throw server.fail('unsupported', 'it has neither /tokenize nor a renderer');
  const reply = await server.post('/tokenize', body, request, signal);
  const bytes = await reply.read();
  const scanned = scanIds(bytes, 'tokens');
  const { tokens, count } = shaped(tokenizedSchema, parseReplyJson(bytes, scanned));
  const ids = idsOf(tokens, scanned, 'tokens');
  if ((count ?? ids.length) !== ids.length) throw refusal(`tokens has ${ids.length} ids, but count is ${count}`);
  return ids;
}

function renderedIds(server: EngineServer, bytes: Buffer): Int32Array {
  const scanned = scanIds(bytes, 'token_ids');
  const { token_ids: ids, features } = shaped(renderedSchema, parseReplyJson(bytes, scanned));
  // The ids of an image only hold its place: prompted by them alone, the model would see none.
  if (features !== null && features !== undefined) {
    throw server.fail('unsupported', 'messages with images cannot be given as token ids', { field: 'features' });
  }
  return idsOf(ids, scanned, 'token_ids');
}

/** The number of ids that messages and tools are rendered to, with the opening of a reply. */
export async function countTokens(
  server: EngineServer,
  facts: ServerFacts,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<number> {
  const rendering = { ...request, generationPrompt: true };
  if (!facts.routes.tokenize) return (await render(server, facts, rendering, signal)).length;
  const reply = await server.post('/tokenize', renderBody(facts.model, rendering), request, signal);
  return shaped(countSchema, parseReplyJson(await reply.read(), null)).count;
}

/** The text of ids, special tokens included. */
export async function detokenize(
  server: EngineServer,
  { model, routes }: ServerFacts,
  ids: Int32Array,
  signal: AbortSignal,
): Promise<string> {
  if (!routes.detokenize) throw server.fail('unsupported', 'it has no /detokenize');
  const body = `{"model":${JSON.stringify(model)},"tokens":[${ids.join(',')}]}`;
  const reply = await server.post('/detokenize', body, null, signal);
  return shaped(textSchema, parseReplyJson(await reply.read(), null)).prompt;
}
