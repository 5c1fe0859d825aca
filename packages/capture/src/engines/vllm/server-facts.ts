import type { EngineCapabilities } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { GenerateRequest } from '../engine.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';
import {
  chatBody,
  DERENDER_PATH,
  GENERATE_PATH,
  OPTIONAL_CHAT_FIELDS,
  RENDER_PATH,
  TOKEN_ID_FIELDS,
} from './request.ts';

/**
 * Model name that no server has. A server validates the whole request first, which detects every field that it does not support. It then
 * refuses the model name, so that nothing is sampled.
 */
const NO_MODEL = 'floe-probe-of-request-fields';

/** Statuses of a GET that show that the route exists, whether it accepts GET or only POST. */
const ROUTE_EXISTS = new Set([200, 204, 400, 405, 422]);

const modelSchema = z.looseObject({
  id: z.string(),
  root: z.string().nullish(),
  max_model_len: z.int().nullish(),
});
const modelsSchema = z.looseObject({ data: z.array(modelSchema).min(1) });
const versionSchema = z.looseObject({ version: z.string() });

/** The unchanging properties of a server, which are determined when it is connected. */
export type ServerFacts = {
  readonly model: string;
  /** All names that replies of this model may carry. A server with several names for one model may use any of them. */
  readonly modelNames: ReadonlySet<string>;
  readonly maxModelLen: number | null;
  readonly serverVersion: string | null;
  readonly routes: Routes;
  /** Request fields of chat completions that the server refuses. */
  readonly unknownFields: ReadonlySet<string>;
};

/** States for each endpoint whether the server has it. */
type Routes = {
  readonly generate: boolean;
  readonly render: boolean;
  readonly derender: boolean;
  readonly tokenize: boolean;
  readonly detokenize: boolean;
  readonly pause: boolean;
  readonly abort: boolean;
};

/**
 * Reads the properties of a server, as far as possible without sampling. `model` is the model to use; `null` selects the first model of the
 * server. Rejects with `engine_unavailable` when the server cannot be reached. Rejects with `engine_error` when it does not serve the model or
 * does not list its models.
 */
export async function readServerFacts(server: EngineServer, model: string | null): Promise<ServerFacts> {
  const entry = await findModel(server, model);
  const [serverVersion, routes, unknownFields] = await Promise.all([
    versionOf(server),
    routesOf(server),
    unknownChatFields(server, entry.model),
  ]);
  return { ...entry, serverVersion, routes, unknownFields };
}

async function findModel(
  server: EngineServer,
  model: string | null,
): Promise<Pick<ServerFacts, 'model' | 'modelNames' | 'maxModelLen'>> {
  const reply = await server.controlGet('/v1/models');
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  if (reply.status !== 200 || !parsed.success) {
    throw server.error('engine_error', `/v1/models answered ${reply.status} without a model list`);
  }
  const { data } = parsed.data;
  const entry = model === null ? data[0] : data.find(({ id }) => id === model);
  if (entry === undefined) {
    const served = data.map(({ id }) => id).join(', ');
    throw server.error('engine_error', `it does not serve ${model}, but ${served}`);
  }
  const { id, root, max_model_len } = entry;
  const others = root ? data.filter((other) => other.root === root).map((other) => other.id) : [];
  return { model: id, modelNames: new Set([id, ...others]), maxModelLen: max_model_len ?? null };
}

async function versionOf(server: EngineServer): Promise<string | null> {
  const reply = await server.controlGet('/version');
  const parsed = versionSchema.safeParse(jsonOf(reply.body));
  return reply.status === 200 && parsed.success ? parsed.data.version : null;
}

async function routesOf(server: EngineServer): Promise<Routes> {
  const exists = async (path: string): Promise<boolean> => ROUTE_EXISTS.has((await server.controlGet(path)).status);
  const [generate, render, derender, tokenize, detokenize, pause, abort] = await Promise.all([
    exists(GENERATE_PATH),
    exists(RENDER_PATH),
    exists(DERENDER_PATH),
    exists('/tokenize'),
    exists('/detokenize'),
    server.controlGet('/is_paused').then(({ status }) => status === 200),
    exists('/abort_requests'),
  ]);
  // A vLLM server without --enable-scale-out has these endpoints but answers every POST with 403. With the option it refuses an empty body
  // with another status.
  const isScaleOut = render && (await server.controlPost(RENDER_PATH, '{}')).status !== 403;
  return {
    generate: generate && isScaleOut,
    render: render && isScaleOut,
    derender: derender && isScaleOut,
    ...{ tokenize, detokenize, pause, abort },
  };
}

/**
 * Determines the request fields that a strict server refuses. It compares statuses and not messages, because the wording of a refusal
 * differs between servers. On a server that supports all fields, this costs one call.
 */
async function unknownChatFields(server: EngineServer, model: string): Promise<ReadonlySet<string>> {
  const fields: readonly string[] = [...OPTIONAL_CHAT_FIELDS, ...TOKEN_ID_FIELDS];
  const none: ReadonlySet<string> = new Set();
  const isRefused = async (unknown: ReadonlySet<string>, name: string): Promise<boolean> => {
    const { status } = await server.controlPost('/v1/chat/completions', probeBody(name, unknown));
    return status === 400 || status === 422;
  };
  if (!(await isRefused(none, NO_MODEL))) return none;
  const all = new Set(fields);
  // Some servers refuse a request with the model name `NO_MODEL` even when all optional fields are left out. For such a server the next
  // calls use the real model name, and each samples one token.
  const name = (await isRefused(all, NO_MODEL)) ? model : NO_MODEL;
  if (name === model && !(await isRefused(none, model))) return none;
  const refused = await Promise.all(
    fields.map((field) => isRefused(new Set(fields.filter((other) => other !== field)), name)),
  );
  return new Set(fields.filter((_, index) => refused[index]));
}

function probeBody(model: string, unknown: ReadonlySet<string>): string {
  return chatBody(PROBE_REQUEST, { model, maxTokens: 1, stream: true, unknown });
}

/** Request for probes, in which every optional field is set. */
export const PROBE_REQUEST: GenerateRequest = {
  completionId: 'floe-probe',
  sessionId: 'floe-probe',
  pool: '',
  messageTexts: ['{"role":"user","content":"."}'],
  tools: [],
  toolsText: '[]',
  toolChoice: null,
  parallelToolCalls: null,
  sampling: {
    temperature: 1,
    top_p: 1,
    top_k: 0,
    min_p: 0,
    repetition_penalty: 1,
    max_tokens: null,
    seed: null,
  },
  maxTokens: 1,
  stop: [],
  responseFormat: null,
  seed: null,
  prompt: null,
  resumeFrom: null,
  policyVersion: 'floe-probe',
};

/** Derives the engine's capabilities from `facts`, without the chat template's properties and without capabilities that only replies show. */
export function capabilitiesOf(facts: ServerFacts): Omit<EngineCapabilities, 'template' | 'version_spans'> {
  const { routes, unknownFields } = facts;
  const hasTokenIds = TOKEN_ID_FIELDS.every((field) => !unknownFields.has(field));
  const acceptsIds = routes.generate && routes.derender && routes.render;
  return {
    token_ids: hasTokenIds,
    token_input: acceptsIds && hasTokenIds ? 'generate' : 'none',
    pause: routes.pause,
    abort: routes.abort,
    cache_salt: !unknownFields.has('cache_salt'),
    notes: notesOf(facts, hasTokenIds),
  };
}

function notesOf({ routes, unknownFields }: ServerFacts, hasTokenIds: boolean): string[] {
  const missing = [
    ...(routes.generate ? [] : [GENERATE_PATH]),
    ...(routes.render ? [] : [RENDER_PATH]),
    ...(routes.derender ? [] : [DERENDER_PATH]),
  ];
  return [
    ...(missing.length === 0
      ? ['prompts can be given as token ids']
      : [`prompts cannot be given as token ids: there is no ${missing.join(', ')} (vllm serve --enable-scale-out)`]),
    ...(hasTokenIds ? [] : ['it refuses return_token_ids or logprobs, so that its replies cannot be trained on']),
    ...(unknownFields.size === 0 ? [] : [`it refuses the fields ${[...unknownFields].join(', ')}; they are left out`]),
    ...(routes.tokenize ? [] : ['there is no /tokenize']),
    ...(routes.pause ? [] : ['there is no /pause (VLLM_SERVER_DEV_MODE=1)']),
    ...(routes.abort ? [] : ['there is no /abort_requests (VLLM_SERVER_DEV_MODE=1); a call ends with its connection']),
  ];
}
