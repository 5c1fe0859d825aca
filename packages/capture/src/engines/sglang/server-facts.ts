import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import { type EngineServer, type HttpReply, jsonOf } from '../engine-server.ts';
import type { ExpertShape } from './joined-reply.ts';

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

/** The properties that an SGLang server reports about itself. */
export type ServerFacts = {
  readonly model: string;
  readonly maxModelLen: number | null;
  readonly version: string | null;
  readonly toolParser: string | null;
  readonly reasoningParser: string | null;
  /** Whether each chunk in the streams of `/generate` has only new text. Otherwise each chunk repeats all earlier text. */
  readonly incrementalStreams: boolean;
  /** Path of the endpoint that reports the policy version. */
  readonly versionPath: string;
  readonly reportsExperts: boolean;
  /** The model's number of layers and its number of experts per token; `null` when the server does not report them. */
  readonly expertShape: ExpertShape | null;
};

/**
 * Reads the properties that an SGLang server reports. `model` is the model to use; `null` selects the first model of the server. Rejects with
 * `engine_error` when the server is not an SGLang server or does not serve `model`.
 */
export async function readServerFacts(server: EngineServer, model: string | null): Promise<ServerFacts> {
  const entry = await findModel(server, model);
  const serverInfo = await firstEndpoint(server, ['/server_info', '/get_server_info']);
  const modelInfo = await firstEndpoint(server, ['/model_info', '/get_model_info']);
  if (modelInfo === null) {
    throw server.error('engine_error', 'it is not an SGLang server: it has neither /model_info nor /get_model_info');
  }
  const info = serverInfoSchema.safeParse(serverInfo === null ? {} : jsonOf(serverInfo.reply.body)).data;
  const config = modelInfoSchema.safeParse(jsonOf(modelInfo.reply.body)).data;
  return {
    ...entry,
    version: info?.version ?? null,
    toolParser: info?.tool_call_parser ?? null,
    reasoningParser: info?.reasoning_parser ?? null,
    incrementalStreams: info?.incremental_streaming_output === true,
    versionPath: modelInfo.path,
    reportsExperts: info?.enable_return_routed_experts === true,
    expertShape: expertShapeOf(config) ?? expertShapeOf(config?.model_config) ?? expertShapeOf(config?.hf_config),
  };
}

function expertShapeOf(config: z.output<typeof configSchema> | null | undefined): ExpertShape | null {
  const { num_hidden_layers: layers, num_experts_per_tok: experts } = config ?? {};
  return layers && experts ? { layers, experts } : null;
}

/**
 * Reads the models that the server lists. Rejects with `engine_unavailable` when the server cannot be reached, and with `engine_error` when
 * it does not list its models.
 */
export async function readModels(server: EngineServer): Promise<z.output<typeof modelsSchema>> {
  const reply = await server.controlGet('/v1/models');
  if (reply.status === 503 || reply.status === 429) throw server.statusError(reply);
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  if (reply.status === 200 && parsed.success) return parsed.data;
  throw server.error('engine_error', `/v1/models answered ${reply.status} without a model list`);
}

async function findModel(
  server: EngineServer,
  model: string | null,
): Promise<{ model: string; maxModelLen: number | null }> {
  const { data } = await readModels(server);
  const entry = model === null ? data[0] : data.find(({ id }) => id === model);
  if (entry === undefined) {
    const served = data.map(({ id }) => id).join(', ');
    throw new FloeError('engine_error', `engine ${server.engineId} does not serve ${model}, but ${served}`, {
      engine_id: server.engineId,
    });
  }
  return { model: entry.id, maxModelLen: entry.max_model_len ?? null };
}

type Endpoint = { readonly path: string; readonly reply: HttpReply };

/** Requests the given paths in order and returns the first path that exists, with the reply; `null` when no path exists. */
async function firstEndpoint(server: EngineServer, paths: readonly string[]): Promise<Endpoint | null> {
  for (const path of paths) {
    const reply = await server.controlGet(path);
    if (reply.status === 200) return { path, reply };
  }
  return null;
}
