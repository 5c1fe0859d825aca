import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { EngineSpec } from '../../schema/index.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';
import { errorMessage } from '../record.ts';

const modelsSchema = z.looseObject({
  data: z
    .array(
      z.looseObject({
        id: z.string(),
        aliases: z.array(z.string()).nullish(),
        meta: z.looseObject({ n_vocab: z.int().nullish() }).nullish(),
      }),
    )
    .min(1),
});

const propsSchema = z.looseObject({
  default_generation_settings: z.looseObject({ n_ctx: z.int().min(1) }),
  chat_template: z.string().nullish(),
  chat_template_tool_use: z.string().nullish(),
  build_info: z.string().nullish(),
});

/** What a llama.cpp server tells of itself. */
export type LlamaCppFacts = {
  readonly model: string;
  /** All names that replies may have. */
  readonly models: ReadonlySet<string>;
  readonly vocabulary: number | null;
  /** Of one slot. */
  readonly contextTokens: number;
  readonly version: string | null;
  readonly thinking: boolean;
  readonly calls: boolean;
};

/** Rejects with `engine_unavailable`, `engine_error`, or `unsupported` for a parser that is not there. */
export async function readFacts(server: EngineServer, spec: EngineSpec): Promise<LlamaCppFacts> {
  const { data } = await told(server, '/v1/models', modelsSchema);
  const entry =
    spec.model === null
      ? data[0]
      : data.find(({ id, aliases }) => id === spec.model || aliases?.includes(spec.model ?? ''));
  if (entry === undefined) {
    const served = data.map(({ id }) => id).join(', ');
    throw server.fail('engine_error', `it does not serve ${spec.model}, but ${served}`);
  }
  const props = await told(server, '/props', propsSchema);
  const template = `${props.chat_template ?? ''}${props.chat_template_tool_use ?? ''}`;
  return {
    model: entry.id,
    models: new Set([entry.id, ...(entry.aliases ?? [])]),
    vocabulary: entry.meta?.n_vocab ?? null,
    contextTokens: props.default_generation_settings.n_ctx,
    version: props.build_info ?? null,
    calls: chosen('tool_parser', spec.tool_parser, 'hermes', template.includes('<tool_call>')),
    thinking: chosen('reasoning_parser', spec.reasoning_parser, 'qwen3', template.includes('</think>')),
  };
}

async function told<T extends z.ZodType>(server: EngineServer, path: string, schema: T): Promise<z.output<T>> {
  const reply = await server.look(path);
  const json = jsonOf(reply.body);
  const parsed = schema.safeParse(json);
  if (reply.status === 200 && parsed.success) return parsed.data;
  if (reply.status !== 200) throw server.refused(reply);
  const at = parsed.error?.issues[0];
  const what = errorMessage(json) ?? `${at?.path.map(String).join('.') || 'body'}: ${at?.message}`;
  throw server.fail('engine_error', `${path} is not that of llama.cpp: ${what}`);
}

/** The server parses nothing that it was not asked for as messages, so floe does; it knows one family of formats. */
function chosen(field: string, asked: string | null, known: string, detected: boolean): boolean {
  if (asked === null) return detected;
  if (asked === known) return true;
  throw new FloeError(
    'unsupported',
    `${field} ${JSON.stringify(asked)} for an engine of kind llama_cpp; there is ${known}, or null for what its template shows`,
  );
}
