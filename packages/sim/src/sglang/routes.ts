import { isoNow } from '@floe-rl/core';
import type { SimContext } from '../context.ts';
import type { Exchange, Handler, RouteTable } from '../http.ts';
import { BLOCK_TOKENS } from '../prefix-cache.ts';
import { chatCompletions } from './chat.ts';
import { completions } from './completions.ts';
import { controlRoutes } from './control.ts';
import { generate } from './generate.ts';
import { REASONING_PARSER, TOOL_CALL_PARSER } from './reply-text.ts';
import { SglangState } from './state.ts';
import { detokenize, parseFunctionCall, separateReasoningRoute, tokenize } from './text-routes.ts';

/** Returns the routes of the simulated SGLang server. */
export function sglangRoutes(context: SimContext): RouteTable {
  const state = new SglangState(context);
  const tokenizeHandler: Handler = (exchange) => tokenize(exchange, state);
  const detokenizeHandler: Handler = (exchange) => detokenize(exchange, state);
  return {
    ...infoRoutes(state),
    ...controlRoutes(state),
    'POST /generate': (exchange) => generate(exchange, state),
    'POST /v1/chat/completions': (exchange) => chatCompletions(exchange, state),
    'POST /v1/completions': (exchange) => completions(exchange, state),
    'POST /tokenize': tokenizeHandler,
    'POST /v1/tokenize': tokenizeHandler,
    'POST /detokenize': detokenizeHandler,
    'POST /v1/detokenize': detokenizeHandler,
    'POST /parse_function_call': parseFunctionCall,
    'POST /separate_reasoning': separateReasoningRoute,
  };
}

/** Returns the routes that describe the server and its load. */
function infoRoutes(state: SglangState): RouteTable {
  const { context } = state;
  const { engine, servedModel } = context;
  const modelInfo = (exchange: Exchange): void => exchange.json(200, modelInfoOf(state));
  const serverInfo = (exchange: Exchange): void => exchange.json(200, serverInfoOf(state));
  return {
    'GET /health': (exchange) => exchange.text(200, ''),
    'GET /health_generate': (exchange) => exchange.text(engine.paused ? 503 : 200, ''),
    'GET /get_model_info': modelInfo,
    'GET /model_info': modelInfo,
    'GET /get_server_info': serverInfo,
    'GET /server_info': serverInfo,
    'GET /v1/loads': (exchange) => exchange.json(200, loadsOf(state)),
    'GET /metrics': async (exchange) =>
      exchange.text(200, await state.metrics.text(), { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }),
    'GET /v1/models': (exchange) =>
      exchange.json(200, {
        object: 'list',
        data: [
          {
            id: servedModel.name,
            object: 'model',
            created: Math.floor(context.startedMs / 1000),
            owned_by: 'sglang',
            root: servedModel.name,
            parent: null,
            max_model_len: engine.options.maxModelLen,
          },
        ],
      }),
  };
}

function modelInfoOf({ context }: SglangState): object {
  return {
    model_path: context.servedModel.name,
    tokenizer_path: context.servedModel.name,
    is_generation: true,
    preferred_sampling_params: null,
    weight_version: context.weights.reportedVersion,
    has_image_understanding: context.config.vision,
    has_audio_understanding: false,
    model_type: 'floe_sim',
    architectures: ['FloeSimForCausalLM'],
  };
}

/**
 * Returns the body of the server-info route. As in SGLang, its top level has the launch arguments together with the scheduler's own fields.
 */
function serverInfoOf({ context }: SglangState): object {
  const { config, servedModel, engine, weights } = context;
  return {
    model_path: servedModel.name,
    tokenizer_path: servedModel.name,
    served_model_name: servedModel.name,
    host: config.host,
    context_length: config.maxModelLen,
    max_running_requests: config.maxNumSeqs,
    random_seed: config.seed,
    weight_version: weights.reportedVersion,
    tool_call_parser: TOOL_CALL_PARSER,
    reasoning_parser: REASONING_PARSER,
    incremental_streaming_output: config.incrementalStreaming,
    stream_interval: config.streamInterval,
    enable_metrics: true,
    enable_cache_report: true,
    enable_return_routed_experts: config.routedExperts,
    status: 'ready',
    max_total_num_tokens: engine.cache.capacity * BLOCK_TOKENS,
    internal_states: [{ weight_version: weights.reportedVersion, max_running_requests_limit: config.maxNumSeqs }],
    version: config.version,
  };
}

function loadsOf({ context }: SglangState): object {
  const { running, waiting, cache } = context.engine;
  const load = {
    dp_rank: 0,
    num_running_reqs: running,
    num_waiting_reqs: waiting,
    num_total_reqs: running + waiting,
    num_reqs: running + waiting,
    num_used_tokens: cache.size * BLOCK_TOKENS,
    max_total_num_tokens: cache.capacity * BLOCK_TOKENS,
    token_usage: cache.size / cache.capacity,
  };
  return {
    timestamp: isoNow(context.clock),
    version: context.config.version,
    dp_rank_count: 1,
    loads: [load],
    aggregate: { total_running_reqs: running, total_waiting_reqs: waiting, total_reqs: running + waiting },
  };
}
