import { z } from 'zod';
import type { GenerateRequest } from '../engine.ts';
import { parseReplyJson, shaped } from '../record.ts';
import { RENDER_PATH } from './probe.ts';
import { choiceFields } from './request.ts';
import type { VllmServer } from './server.ts';

/** Harnesses ask for a handful of forms; each is as large as its tools or its schema. */
const MAX_KEPT = 64;

const renderedSchema = z.looseObject({
  sampling_params: z.looseObject({ structured_outputs: z.looseObject({}).nullish() }),
  reasoning_parser_kwargs: z.looseObject({}).nullish(),
});

/** What a generate request says of the form that its reply must have, as fields' JSON texts. */
export type Constraint = {
  readonly structuredOutputs: string;
  /** Tells the engine when thinking has ended, so that the form is not asked of it; null: as the prompt says. */
  readonly reasoningParser: string | null;
};

/**
 * What the sampler has to be told so that a reply is a forced call or of a response format. How vLLM puts that changes from
 * release to release and from tool parser to tool parser, so the server is asked: it renders a short conversation with the same
 * demand, and what it would tell its own sampler is taken over.
 */
export class Constraints {
  private readonly server: VllmServer;
  private readonly model: string;
  /** Latest use last. */
  private readonly known = new Map<string, Constraint>();

  constructor(server: VllmServer, model: string) {
    this.server = server;
    this.model = model;
  }

  /** Null: the request demands nothing. Rejects with `unsupported` where the server does not say how. */
  async of(request: GenerateRequest, signal: AbortSignal): Promise<Constraint | null> {
    if (!demands(request)) return null;
    const body = demandBody(this.model, request);
    const known = this.known.get(body);
    if (known !== undefined) {
      this.known.delete(body);
      this.known.set(body, known);
      return known;
    }
    const constraint = await this.ask(body, request, signal);
    this.known.set(body, constraint);
    for (const oldest of this.known.keys()) {
      if (this.known.size <= MAX_KEPT) break;
      this.known.delete(oldest);
    }
    return constraint;
  }

  private async ask(body: string, request: GenerateRequest, signal: AbortSignal): Promise<Constraint> {
    const reply = await this.server.post(RENDER_PATH, body, request, signal);
    const rendered = shaped(renderedSchema, parseReplyJson(await reply.read(), null));
    const { structured_outputs: outputs } = rendered.sampling_params;
    if (outputs === null || outputs === undefined) {
      const what = forcesCall(request) ? 'tool_choice' : 'response_format';
      throw this.server.fail('unsupported', `it does not tell how ${what} is kept behind token ids`, { field: what });
    }
    const parser = rendered.reasoning_parser_kwargs ?? null;
    return {
      structuredOutputs: JSON.stringify(outputs),
      reasoningParser: parser === null ? null : JSON.stringify(parser),
    };
  }
}

function demands(request: GenerateRequest): boolean {
  return request.responseFormat !== null || forcesCall(request);
}

function forcesCall({ tools, toolChoice }: GenerateRequest): boolean {
  return tools.length > 0 && toolChoice !== null && toolChoice !== 'auto' && toolChoice !== 'none';
}

function demandBody(model: string, request: GenerateRequest): string {
  const rest = JSON.stringify({
    ...choiceFields(request),
    ...(request.responseFormat === null ? {} : { response_format: request.responseFormat }),
    max_tokens: 1,
  });
  const tools = request.tools.length === 0 ? '' : `,"tools":${request.toolsText}`;
  return `{"model":${JSON.stringify(model)},"messages":[{"role":"user","content":"."}]${tools},${rest.slice(1)}`;
}
