import type { EngineSpec } from '@floe-rl/core/schema';
import { z } from 'zod';
import { ownParsers } from '../chat/hermes.ts';
import { errorMessageOf } from '../chat/reply-tokens.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';

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

/** The properties that a llama.cpp server reports. */
export type ServerFacts = {
  readonly model: string;
  /** All model names that a reply may carry: the model's id and its aliases. */
  readonly modelNames: ReadonlySet<string>;
  /** Size of the vocabulary in tokens; `null` when the server does not report it. */
  readonly vocabulary: number | null;
  /** Context length of one slot of the server, in tokens. */
  readonly contextTokens: number;
  readonly version: string | null;
  /** Whether replies may contain thinking that floe has to parse. */
  readonly hasThinking: boolean;
  /** Whether replies may contain tool calls that floe has to parse. */
  readonly hasCalls: boolean;
};

/**
 * Reads the properties of a llama.cpp server. Rejects with `engine_unavailable`, `engine_error`, or `unsupported` when `spec` names a
 * parser that floe does not have.
 */
export async function readServerFacts(server: EngineServer, spec: EngineSpec): Promise<ServerFacts> {
  const { data } = await get(server, '/v1/models', modelsSchema);
  const entry =
    spec.model === null
      ? data[0]
      : data.find(({ id, aliases }) => id === spec.model || aliases?.includes(spec.model ?? ''));
  if (entry === undefined) {
    const served = data.map(({ id }) => id).join(', ');
    throw server.error('engine_error', `it does not serve ${spec.model}, but ${served}`);
  }
  const props = await get(server, '/props', propsSchema);
  const template = `${props.chat_template ?? ''}${props.chat_template_tool_use ?? ''}`;
  return {
    model: entry.id,
    modelNames: new Set([entry.id, ...(entry.aliases ?? [])]),
    vocabulary: entry.meta?.n_vocab ?? null,
    contextTokens: props.default_generation_settings.n_ctx,
    version: props.build_info ?? null,
    ...ownParsers(spec, template),
  };
}

async function get<T extends z.ZodType>(server: EngineServer, path: string, schema: T): Promise<z.output<T>> {
  const reply = await server.controlGet(path);
  const json = jsonOf(reply.body);
  const parsed = schema.safeParse(json);
  if (reply.status === 200 && parsed.success) return parsed.data;
  if (reply.status !== 200) throw server.statusError(reply);
  const issue = parsed.error?.issues[0];
  const reason = errorMessageOf(json) ?? `${issue?.path.map(String).join('.') || 'body'}: ${issue?.message}`;
  throw server.error('engine_error', `${path} is not that of llama.cpp: ${reason}`);
}
