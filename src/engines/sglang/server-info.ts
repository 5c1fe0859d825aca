import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';
import type { HttpReply } from '../http.ts';
import type { ExpertShape } from './experts.ts';

const modelsSchema = z.looseObject({
  data: z.array(z.looseObject({ id: z.string(), max_model_len: z.int().nullish() })).min(1),
});

const sizeSchema = z.int().min(1).nullish();
const configSchema = z.looseObject({ num_hidden_layers: sizeSchema, num_experts_per_tok: sizeSchema });

const serverInfoSchema = z.looseObject({
  version: z.string().nullish(),
  tool_call_parser: z.string().nullish(),
  reasoning_parser: z.string().nullish(),
  incremental_streaming_output: z.boolean().nullish(),
  enable_return_routed_experts: z.boolean().nullish(),
});

const modelInfoSchema = configSchema.extend({
  model_config: configSchema.nullish(),
  hf_config: configSchema.nullish(),
});

/** What a server says of itself. */
export type ServerInfo = {
  readonly model: string;
  readonly maxModelLen: number | null;
  readonly version: string | null;
  readonly toolParser: string | null;
  readonly reasoningParser: string | null;
  /** Whether the pieces of its own streams are pieces; else each has all that came before. */
  readonly incrementalStreams: boolean;
  /** Where the name of the weights is told. */
  readonly weightPath: string;
  readonly tellsExperts: boolean;
  /** Null: it does not tell. */
  readonly expertShape: ExpertShape | null;
};

/** Rejects with `engine_error` when it is no SGLang server, or does not serve the model that is wanted. */
export async function readServerInfo(server: EngineServer, wanted: string | null): Promise<ServerInfo> {
  const model = await findModel(server, wanted);
  const own = await firstFound(server, ['/server_info', '/get_server_info']);
  const weights = await firstFound(server, ['/model_info', '/get_model_info']);
  if (weights === null) {
    throw server.fail('engine_error', 'it is no SGLang server: there is neither /model_info nor /get_model_info');
  }
  const said = serverInfoSchema.safeParse(own === null ? {} : jsonOf(own.reply.body)).data;
  const shape = modelInfoSchema.safeParse(jsonOf(weights.reply.body)).data;
  return {
    ...model,
    version: said?.version ?? null,
    toolParser: said?.tool_call_parser ?? null,
    reasoningParser: said?.reasoning_parser ?? null,
    incrementalStreams: said?.incremental_streaming_output === true,
    weightPath: weights.path,
    tellsExperts: said?.enable_return_routed_experts === true,
    expertShape: expertShapeOf(shape) ?? expertShapeOf(shape?.model_config) ?? expertShapeOf(shape?.hf_config),
  };
}

function expertShapeOf(config: z.output<typeof configSchema> | null | undefined): ExpertShape | null {
  const { num_hidden_layers: layers, num_experts_per_tok: experts } = config ?? {};
  return layers && experts ? { layers, experts } : null;
}

/** The models that the server lists. Rejects with `engine_unavailable` or `engine_error`. */
export async function readModels(server: EngineServer): Promise<z.output<typeof modelsSchema>> {
  const reply = await server.look('/v1/models');
  if (reply.status === 503 || reply.status === 429) throw server.refused(reply);
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  if (reply.status === 200 && parsed.success) return parsed.data;
  throw server.fail('engine_error', `/v1/models answered ${reply.status} without a model list`);
}

async function findModel(
  server: EngineServer,
  wanted: string | null,
): Promise<{ model: string; maxModelLen: number | null }> {
  const { data } = await readModels(server);
  const found = wanted === null ? data[0] : data.find((entry) => entry.id === wanted);
  if (found === undefined) {
    const served = data.map((entry) => entry.id).join(', ');
    throw new FloeError('engine_error', `engine ${server.engineId} does not serve ${wanted}, but ${served}`, {
      engine_id: server.engineId,
    });
  }
  return { model: found.id, maxModelLen: found.max_model_len ?? null };
}

type Found = { readonly path: string; readonly reply: HttpReply };

async function firstFound(server: EngineServer, paths: readonly string[]): Promise<Found | null> {
  for (const path of paths) {
    const reply = await server.look(path);
    if (reply.status === 200) return { path, reply };
  }
  return null;
}
