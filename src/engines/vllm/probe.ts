import { z } from 'zod';
import type { EngineCapabilities } from '../../schema/index.ts';
import type { GenerateRequest } from '../engine.ts';
import { type EngineServer, jsonOf } from '../engine-server.ts';
import { chatBody, OPTIONAL_CHAT_FIELDS, TOKEN_ID_FIELDS } from './request.ts';

export const GENERATE_PATH = '/inference/v1/generate';
export const RENDER_PATH = '/v1/chat/completions/render';
export const DERENDER_PATH = '/v1/chat/completions/derender';

/**
 * Nobody serves a model of this name: a server reads the whole request, finds every field that it does not know, and then
 * refuses it, with nothing sampled.
 */
const NO_MODEL = 'floe-probe-of-request-fields';

/** Statuses of a GET on a route that is there for POST alone, or that answers a GET too. */
const THERE = new Set([200, 204, 400, 405, 422]);

const modelSchema = z.looseObject({
  id: z.string(),
  root: z.string().nullish(),
  max_model_len: z.int().nullish(),
});
const modelsSchema = z.looseObject({ data: z.array(modelSchema).min(1) });
const versionSchema = z.looseObject({ version: z.string() });

/** What is known of a server once it was looked at. Nothing of it changes. */
export type ServerFacts = {
  readonly model: string;
  /** Names that replies of this model may carry: a model that is served under several answers with any of them. */
  readonly modelNames: ReadonlySet<string>;
  readonly maxModelLen: number | null;
  readonly serverVersion: string | null;
  readonly routes: Routes;
  /** Chat fields that the server refuses. */
  readonly unknownFields: ReadonlySet<string>;
};

/** Which addresses there are. */
export type Routes = {
  readonly generate: boolean;
  readonly render: boolean;
  readonly derender: boolean;
  readonly tokenize: boolean;
  readonly detokenize: boolean;
  readonly pause: boolean;
  readonly abort: boolean;
};

/**
 * Looks at a server without sampling from it. Rejects with `engine_unavailable` when it cannot be reached, `engine_error` when it
 * has no models or not the one that is wanted, or an answer does not arrive whole.
 */
export async function lookAt(server: EngineServer, wanted: string | null): Promise<ServerFacts> {
  const found = await findModel(server, wanted);
  const [serverVersion, routes, unknownFields] = await Promise.all([
    versionOf(server),
    routesOf(server),
    unknownChatFields(server, found.model),
  ]);
  return { ...found, serverVersion, routes, unknownFields };
}

async function findModel(
  server: EngineServer,
  wanted: string | null,
): Promise<Pick<ServerFacts, 'model' | 'modelNames' | 'maxModelLen'>> {
  const reply = await server.look('/v1/models');
  const parsed = modelsSchema.safeParse(jsonOf(reply.body));
  if (reply.status !== 200 || !parsed.success) {
    throw server.fail('engine_error', `/v1/models answered ${reply.status} without a model list`);
  }
  const { data } = parsed.data;
  const found = wanted === null ? data[0] : data.find((entry) => entry.id === wanted);
  if (found === undefined) {
    const served = data.map((entry) => entry.id).join(', ');
    throw server.fail('engine_error', `it does not serve ${wanted}, but ${served}`);
  }
  const { id, root, max_model_len } = found;
  const others = root ? data.filter((entry) => entry.root === root).map((entry) => entry.id) : [];
  return { model: id, modelNames: new Set([id, ...others]), maxModelLen: max_model_len ?? null };
}

async function versionOf(server: EngineServer): Promise<string | null> {
  const reply = await server.look('/version');
  const parsed = versionSchema.safeParse(jsonOf(reply.body));
  return reply.status === 200 && parsed.success ? parsed.data.version : null;
}

async function routesOf(server: EngineServer): Promise<Routes> {
  const there = async (path: string): Promise<boolean> => THERE.has((await server.look(path)).status);
  const [generate, render, derender, tokenize, detokenize, pause, abort] = await Promise.all([
    there(GENERATE_PATH),
    there(RENDER_PATH),
    there(DERENDER_PATH),
    there('/tokenize'),
    there('/detokenize'),
    server.look('/is_paused').then(({ status }) => status === 200),
    there('/abort_requests'),
  ]);
  // Without --enable-scale-out these addresses exist, and answer every POST with 403. Any that works refuses an empty one.
  const scaleOut = render && (await server.tell(RENDER_PATH, '{}')).status !== 403;
  return {
    generate: generate && scaleOut,
    render: render && scaleOut,
    derender: derender && scaleOut,
    ...{ tokenize, detokenize, pause, abort },
  };
}

/**
 * Which fields a strict server refuses: found by what it does and not by what it says, since every kind of strict server words its
 * refusal in its own way. One call for a server that takes them all.
 */
async function unknownChatFields(server: EngineServer, model: string): Promise<ReadonlySet<string>> {
  const fields: readonly string[] = [...OPTIONAL_CHAT_FIELDS, ...TOKEN_ID_FIELDS];
  const none: ReadonlySet<string> = new Set();
  const refuses = async (unknown: ReadonlySet<string>, name: string): Promise<boolean> => {
    const { status } = await server.tell('/v1/chat/completions', probeBody(name, unknown));
    return status === 400 || status === 422;
  };
  if (!(await refuses(none, NO_MODEL))) return none;
  const all = new Set(fields);
  // Where the name itself is what is refused, a token of the real model has to be sampled.
  const name = (await refuses(all, NO_MODEL)) ? model : NO_MODEL;
  if (name === model && !(await refuses(none, model))) return none;
  const refused = await Promise.all(
    fields.map((field) => refuses(new Set(fields.filter((other) => other !== field)), name)),
  );
  return new Set(fields.filter((_, index) => refused[index]));
}

function probeBody(model: string, unknown: ReadonlySet<string>): string {
  return chatBody(PROBE_REQUEST, { model, maxTokens: 1, stream: true, unknown });
}

/** A request that asks for every field there is. */
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
  begun: null,
  cacheSalt: 'floe-probe',
};

/** What {@link ServerFacts} come down to, but for the template and for what only replies show. */
export function capabilitiesOf(facts: ServerFacts): Omit<EngineCapabilities, 'template' | 'version_spans'> {
  const { routes, unknownFields } = facts;
  const tokenIds = TOKEN_ID_FIELDS.every((field) => !unknownFields.has(field));
  const takesIds = routes.generate && routes.derender && routes.render;
  return {
    token_ids: tokenIds,
    token_input: takesIds && tokenIds ? 'generate' : 'none',
    pause: routes.pause,
    abort: routes.abort,
    cache_salt: !unknownFields.has('cache_salt'),
    notes: notesOf(facts, tokenIds),
  };
}

function notesOf({ routes, unknownFields }: ServerFacts, tokenIds: boolean): string[] {
  const missing = [
    ...(routes.generate ? [] : [GENERATE_PATH]),
    ...(routes.render ? [] : [RENDER_PATH]),
    ...(routes.derender ? [] : [DERENDER_PATH]),
  ];
  return [
    ...(missing.length === 0
      ? ['prompts can be given as token ids']
      : [`prompts cannot be given as token ids: there is no ${missing.join(', ')} (vllm serve --enable-scale-out)`]),
    ...(tokenIds ? [] : ['it refuses return_token_ids or logprobs, so that its replies cannot be trained on']),
    ...(unknownFields.size === 0 ? [] : [`it refuses the fields ${[...unknownFields].join(', ')}; they are left out`]),
    ...(routes.tokenize ? [] : ['there is no /tokenize']),
    ...(routes.pause ? [] : ['there is no /pause (VLLM_SERVER_DEV_MODE=1)']),
    ...(routes.abort ? [] : ['there is no /abort_requests (VLLM_SERVER_DEV_MODE=1); a call ends with its connection']),
  ];
}
