import { z } from 'zod';
import { faultSchema } from './faults.ts';
import { scenarioListSchema } from './policy/scenario.ts';
import { TEMPLATE_MODES } from './template.ts';

/** Name of the simulated model, unless it is configured. */
export const SIM_MODEL = 'floe-sim';

/**
 * Default number of sampled replies that the ledger (the server's own record of everything that it sampled) keeps in memory. It is enough
 * for a test run. The entries take about 200 MB when every call has 10,000 token ids.
 */
const DEFAULT_LEDGER_LIMIT = 2_000;

/**
 * Default context length in tokens, enough for long agent conversations. A large value costs nothing, because memory grows with the actual
 * prompts.
 */
const DEFAULT_MAX_MODEL_LEN = 32_768;

/** Default maximum number of replies sampled concurrently: vLLM's default on large GPUs. */
const DEFAULT_MAX_NUM_SEQS = 256;

/** Default capacity of the prefix cache in blocks of 16 tokens: enough for 16 conversations of the default maximum length. */
const DEFAULT_CACHE_BLOCKS = 32_768;

/** The engines whose HTTP API a simulated server can have. */
export const SIM_FACES = ['vllm', 'sglang'] as const;
export type SimFace = (typeof SIM_FACES)[number];

const delaySchema = z.number().min(0);

/** All settings of a simulated server. docs/sim.md describes them. */
export const simConfigSchema = z.strictObject({
  host: z.string().default('127.0.0.1').describe('the server has no authentication; use a loopback address'),
  port: z.int().min(0).max(65_535).default(0).describe('0 picks a free port'),
  face: z.enum(SIM_FACES).default('vllm').describe('the engine whose HTTP API the server has'),
  model: z.string().min(1).default(SIM_MODEL),
  scenarios: scenarioListSchema
    .default([])
    .describe('requests that they do not cover are answered by a built-in default'),
  version: z.string().min(1).default('0.32.0').describe('the version that /version reports'),
  vision: z.boolean().default(true).describe('whether messages may contain images'),
  templateMode: z.enum(TEMPLATE_MODES).default('append_only'),
  logprobsMode: z
    .enum(['raw_logprobs', 'processed_logprobs'])
    .default('processed_logprobs')
    .describe("which logprobs replies report, as vLLM's --logprobs-mode"),
  generationConfig: z
    .strictObject({
      temperature: z.number().min(0).optional(),
      top_p: z.number().gt(0).max(1).optional(),
      top_k: z.int().min(0).optional(),
      min_p: z.number().min(0).max(1).optional(),
      repetition_penalty: z.number().gt(0).optional(),
    })
    .default({})
    .describe("defaults of sampling parameters that requests leave out, as in a model's generation_config.json"),
  maxModelLen: z.int().min(16).default(DEFAULT_MAX_MODEL_LEN),
  maxNumSeqs: z
    .int()
    .min(1)
    .default(DEFAULT_MAX_NUM_SEQS)
    .describe('maximum number of replies sampled concurrently; other calls wait'),
  tokenDelayMs: delaySchema.default(0),
  firstTokenDelayMs: delaySchema.default(0),
  prefillTokenDelayMs: delaySchema
    .default(0)
    .describe('delay before the first token per prompt token that is not in the prefix cache'),
  speed: z.number().gt(0).default(1).describe('factor by which all delays are divided; 0.5 is an engine at half speed'),
  streamInterval: z.int().min(1).default(1).describe('minimum number of tokens per streamed chunk'),
  cacheBlocks: z
    .int()
    .min(1)
    .default(DEFAULT_CACHE_BLOCKS)
    .describe('capacity of the prefix cache in blocks of 16 tokens'),
  seed: z.int().default(0).describe('determines what requests without a seed sample, and which calls faults hit'),
  weightVersion: z.string().min(1).default('v0').describe('name of the first weights'),
  reportVersions: z
    .enum(['all', 'generate', 'none'])
    .default('generate')
    .describe(
      'which replies contain `weight_versions`: vLLM has them in token generation only, SGLang in all replies or none',
    ),
  scaleOut: z
    .boolean()
    .default(false)
    .describe("whether token generation, rendering and derendering are enabled, as vLLM's --enable-scale-out"),
  devMode: z
    .boolean()
    .default(true)
    .describe('whether the control plane exists, as with VLLM_SERVER_DEV_MODE; without it, its routes are a 404'),
  strict: z.boolean().default(false).describe('whether an unknown request field is a 400'),
  generateLogprobs: z
    .enum(['token_id', 'openai'])
    .default('token_id')
    .describe('shape of logprobs in token generation: integer ids, or `token_id:<n>` as in older servers'),
  generateStopReason: z
    .boolean()
    .default(true)
    .describe('whether token generation reports `stop_reason`, which older servers do not'),
  derenderEnd: z
    .enum(['kept', 'hidden'])
    .default('kept')
    .describe(
      'whether derendered text shows the token that ended the turn and a stop string, as vLLM does, or hides them',
    ),
  derenderStream: z
    .boolean()
    .default(true)
    .describe('whether the derender route accepts streamed chunks, which older servers do not'),
  routedExperts: z.boolean().default(false).describe('whether replies contain `routed_experts`'),
  routedExpertsForm: z
    .enum(['npy', 'object'])
    .default('npy')
    .describe('form in token generation: base64 of an .npy file, or an object of raw data, shape, start and dtype'),
  sglangAge: z
    .enum(['meta_info', 'token_ids', 'sglext', 'stream_ids'])
    .default('stream_ids')
    .describe('how many of the ways to report token ids a simulated SGLang has in chat completions, oldest first'),
  incrementalStreaming: z.boolean().default(false).describe("as SGLang's --incremental-streaming-output"),
  faults: z.array(faultSchema).default([]),
  ledgerLimit: z.int().min(1).default(DEFAULT_LEDGER_LIMIT).describe('maximum number of entries kept in memory'),
  ledgerFile: z.string().optional().describe('append-only JSONL file to which all entries are written'),
});
/** The settings of a simulated server after defaults were applied. */
export type SimConfig = z.output<typeof simConfigSchema>;
/** The settings of a simulated server as its caller gives them; every setting is optional. */
export type SimConfigInput = z.input<typeof simConfigSchema>;
