import { z } from 'zod';
import { faultSchema } from './faults.ts';
import { scenarioListSchema } from './scenario.ts';
import { TEMPLATE_MODES } from './template.ts';

/** A test run's worth of calls; with 10,000 ids each, about 200 MB. */
const DEFAULT_LEDGER_LIMIT = 2_000;

/** Room for long agent conversations at the cost of nothing: memory grows with what is used. */
const DEFAULT_MAX_MODEL_LEN = 32_768;

/** vLLM's default on large GPUs. */
const DEFAULT_MAX_NUM_SEQS = 256;

/** As much cache as 16 conversations of the default length. */
const DEFAULT_CACHE_BLOCKS = 32_768;

const delaySchema = z.number().min(0);

/** Everything that may be set of a simulated server. */
export const simConfigSchema = z.strictObject({
  host: z.string().default('127.0.0.1').describe('the server has no authentication; keep it on loopback'),
  port: z.int().min(0).max(65_535).default(0).describe('0: any free port'),
  face: z.enum(['vllm', 'sglang']).default('vllm').describe('whose HTTP API the server speaks'),
  model: z.string().min(1).default('floe-sim'),
  scenarios: scenarioListSchema.default([]).describe('a built-in default answers what they do not cover'),
  version: z.string().min(1).default('0.32.0').describe('what /version answers'),
  vision: z.boolean().default(true).describe('whether messages may have images'),
  templateMode: z.enum(TEMPLATE_MODES).default('append_only'),
  logprobsMode: z
    .enum(['raw_logprobs', 'processed_logprobs'])
    .default('processed_logprobs')
    .describe("what reported logprobs mean, as vLLM's --logprobs-mode"),
  generationConfig: z
    .strictObject({
      temperature: z.number().min(0).optional(),
      top_p: z.number().gt(0).max(1).optional(),
      top_k: z.int().min(0).optional(),
      min_p: z.number().min(0).max(1).optional(),
      repetition_penalty: z.number().gt(0).optional(),
    })
    .default({})
    .describe("sampling defaults for requests that leave them out, as a model's generation_config.json"),
  maxModelLen: z.int().min(16).default(DEFAULT_MAX_MODEL_LEN),
  maxNumSeqs: z.int().min(1).default(DEFAULT_MAX_NUM_SEQS).describe('calls that sample at once; others wait'),
  tokenDelayMs: delaySchema.default(0),
  firstTokenDelayMs: delaySchema.default(0),
  prefillTokenDelayMs: delaySchema
    .default(0)
    .describe('per prompt token that the prefix cache does not have, before the first token'),
  speed: z.number().gt(0).default(1).describe('all delays are divided by it: 0.5 is an engine at half speed'),
  streamInterval: z.int().min(1).default(1).describe('least tokens per streamed chunk'),
  cacheBlocks: z.int().min(1).default(DEFAULT_CACHE_BLOCKS).describe('prefix cache, in blocks of 16 tokens'),
  seed: z.int().default(0).describe('decides what requests without a seed sample, and which calls faults hit'),
  weightVersion: z.string().min(1).default('v0').describe('name of the first weights'),
  reportVersions: z
    .enum(['all', 'generate', 'none'])
    .default('generate')
    .describe(
      'which replies carry `weight_versions`: vLLM tells them in token generation alone, SGLang in all or none',
    ),
  reportCachedTokens: z.boolean().default(true).describe('whether usage carries `prompt_tokens_details`'),
  scaleOut: z
    .boolean()
    .default(false)
    .describe("as vLLM's --enable-scale-out: token generation, rendering and derendering"),
  devMode: z.boolean().default(true).describe('as VLLM_SERVER_DEV_MODE: the control plane; without, it is a 404'),
  strict: z.boolean().default(false).describe('whether unknown request fields are a 400'),
  generateLogprobs: z
    .enum(['token_id', 'openai'])
    .default('token_id')
    .describe('shape of logprobs in token generation: integer ids, or those of older servers with `token_id:<n>`'),
  generateStopReason: z
    .boolean()
    .default(true)
    .describe('whether token generation tells `stop_reason`, which older servers do not'),
  derenderEnd: z
    .enum(['kept', 'hidden'])
    .default('kept')
    .describe(
      'whether derendered text shows the id that ended the turn and a stop string, as vLLM does, or hides them',
    ),
  routedExperts: z.boolean().default(false).describe('whether replies carry `routed_experts`'),
  routedExpertsForm: z
    .enum(['npy', 'object'])
    .default('npy')
    .describe('of token generation: base64 of an .npy file, or an object of raw data, shape, start and dtype'),
  sglangAge: z
    .enum(['meta_info', 'token_ids', 'sglext', 'stream_ids'])
    .default('stream_ids')
    .describe('how much of token ids a simulated SGLang tells in chat completions, oldest first'),
  incrementalStreaming: z.boolean().default(false).describe("as SGLang's --incremental-streaming-output"),
  faults: z.array(faultSchema).default([]),
  ledgerLimit: z.int().min(1).default(DEFAULT_LEDGER_LIMIT).describe('entries kept in memory'),
  ledgerFile: z.string().optional().describe('append-only JSONL file of all entries'),
});
export type SimConfig = z.output<typeof simConfigSchema>;
export type SimConfigInput = z.input<typeof simConfigSchema>;
