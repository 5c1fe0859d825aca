import { z } from 'zod';
import type { GenerateRequest } from '../engine.ts';
import type { EngineServer } from '../engine-server.ts';
import { parseReplyJson, shaped } from '../record.ts';
import { RENDER_PATH } from './probe.ts';
import { choiceFields, conversation } from './request.ts';

const renderedSchema = z.looseObject({
  sampling_params: z.looseObject({ structured_outputs: z.looseObject({}).nullish() }),
  reasoning_parser_kwargs: z.looseObject({}).nullish(),
});

/** What a generate request says of the form that its reply must have, as fields' JSON texts. */
export type Constraint = {
  readonly structuredOutputs: string;
  /** Tells the engine's own parser how thinking ends, so that no form is asked of it; null: as the server does by itself. */
  readonly reasoningParser: string | null;
};

/**
 * What the sampler has to be told so that a reply is a forced call or of a response format; null: the request demands neither.
 * How vLLM puts that changes from release to release and from tool parser to tool parser, so the server is asked: it renders
 * the request, and what it would tell its own sampler is taken over. Rejects with `unsupported` where it does not say.
 */
export async function constraintOf(
  server: EngineServer,
  model: string,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<Constraint | null> {
  const { responseFormat } = request;
  const forced = forcesCall(request);
  if (!forced && responseFormat === null) return null;
  const rest = JSON.stringify({
    ...choiceFields(request),
    ...(responseFormat === null ? {} : { response_format: responseFormat }),
    max_tokens: 1,
  });
  const body = `${conversation(model, request.messageTexts, request.toolsText)},${rest.slice(1)}`;
  const reply = await server.post(RENDER_PATH, body, request, signal);
  const rendered = shaped(renderedSchema, parseReplyJson(await reply.read(), null));
  const { structured_outputs: outputs } = rendered.sampling_params;
  if (outputs === null || outputs === undefined) {
    const field = forced ? 'tool_choice' : 'response_format';
    throw server.fail('unsupported', `it does not tell how ${field} is kept behind token ids`, { field });
  }
  const parser = rendered.reasoning_parser_kwargs ?? null;
  return {
    structuredOutputs: JSON.stringify(outputs),
    reasoningParser: parser === null ? null : JSON.stringify(parser),
  };
}

function forcesCall({ tools, toolChoice }: GenerateRequest): boolean {
  return tools.length > 0 && toolChoice !== null && toolChoice !== 'auto' && toolChoice !== 'none';
}
