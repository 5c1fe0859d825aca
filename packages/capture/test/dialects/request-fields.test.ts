import type { DialectName } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import * as anthropicFields from '../../src/dialects/anthropic/schema.ts';
import { type CallContext, type CanonicalRequest, type Dialect, plainContext } from '../../src/dialects/dialect.ts';
import * as geminiFields from '../../src/dialects/gemini/schema.ts';
import * as chatFields from '../../src/dialects/openai_chat/schema.ts';
import * as responsesFields from '../../src/dialects/openai_responses/schema.ts';
import { DIALECTS } from '../../src/dialects/registry.ts';

/**
 * What happens to a request field. `used`: it changes the request that floe makes of the body. `noted`: it has no effect, and `adjusted`
 * names it. `harmless`: it has no effect and is not noted. `refused`: the request is refused with the name of the field.
 */
type Treatment = 'used' | 'noted' | 'harmless' | 'refused';

/** Fields with an example value, by their treatment. A dot separates the name of an object from the name of a field inside the object. */
type FieldTable = Readonly<Record<Treatment, Readonly<Record<string, unknown>>>>;

const SCHEMA = { type: 'object', properties: { n: { type: 'integer' } } };
const FUNCTION = { type: 'function', function: { name: 'f', parameters: SCHEMA } };

const CHAT_BASE = { model: 'm', messages: [{ role: 'user', content: 'hi' }], tools: [FUNCTION] };

/** The fields of OpenAI's API, followed by the fields that vLLM and SGLang add to it. */
const CHAT: FieldTable = {
  used: {
    max_completion_tokens: 5,
    max_tokens: 5,
    messages: [{ role: 'user', content: 'ho' }],
    model: 'other',
    parallel_tool_calls: false,
    response_format: { type: 'json_object' },
    seed: 3,
    stop: ['x'],
    stream: true,
    'stream_options.include_usage': true,
    temperature: 0.5,
    tool_choice: 'required',
    tools: [],
    top_k: 4,
    top_p: 0.5,
  },
  noted: {
    audio: { voice: 'v' },
    frequency_penalty: 1,
    logit_bias: { '1': 2 },
    logprobs: true,
    modalities: ['text', 'audio'],
    prediction: { type: 'content', content: 'x' },
    presence_penalty: 1,
    reasoning_effort: 'low',
    'stream_options.continuous_usage_stats': true,
    top_logprobs: 2,
    verbosity: 'low',
    web_search_options: { search_context_size: 'low' },
    add_special_tokens: true,
    allowed_token_ids: [1],
    bad_words: ['x'],
    best_of: 4,
    chat_template: '{{ messages }}',
    chat_template_kwargs: { enable_thinking: false },
    custom_logit_processor: 'x',
    documents: [{ text: 'x' }],
    ebnf: 'root ::= "a"',
    echo: true,
    enable_thinking: false,
    guided_choice: ['a'],
    guided_grammar: 'x',
    guided_json: SCHEMA,
    guided_regex: 'x',
    ignore_eos: true,
    include_reasoning: false,
    include_stop_str_in_output: true,
    kv_transfer_params: { a: 1 },
    length_penalty: 2,
    logits_processors: ['x'],
    lora_path: 'x',
    min_p: 0.1,
    min_tokens: 5,
    mm_processor_kwargs: { a: 1 },
    no_stop_trim: true,
    prompt_logprobs: 1,
    regex: 'x',
    repetition_penalty: 1.1,
    return_hidden_states: true,
    return_token_ids: true,
    return_tokens_as_token_ids: true,
    skip_special_tokens: false,
    stop_token_ids: [1],
    structured_outputs: { regex: 'x' },
    thinking_token_budget: 0,
    truncate_prompt_tokens: 10,
    use_beam_search: true,
    vllm_xargs: { a: 1 },
  },
  harmless: {
    cache_salt: 'x',
    metadata: { a: 'b' },
    priority: 1,
    prompt_cache_key: 'k',
    prompt_cache_options: { mode: 'explicit' },
    prompt_cache_retention: '24h',
    request_id: 'r',
    rid: 'r',
    safety_identifier: 's',
    service_tier: 'flex',
    store: true,
    'stream_options.include_obfuscation': true,
    user: 'u',
    best_of: 1,
    echo: false,
    frequency_penalty: 0,
    ignore_eos: false,
    include_reasoning: true,
    repetition_penalty: 1,
    separate_reasoning: true,
    skip_special_tokens: true,
  },
  refused: {
    add_generation_prompt: false,
    continue_final_message: true,
    function_call: 'auto',
    functions: [{ name: 'f' }],
    n: 2,
  },
};

const ANTHROPIC_BASE = {
  model: 'm',
  messages: [{ role: 'user', content: 'hi' }],
  tools: [{ name: 'f', input_schema: SCHEMA }],
};

const ANTHROPIC: FieldTable = {
  used: {
    max_tokens: 5,
    messages: [{ role: 'user', content: 'ho' }],
    model: 'other',
    'output_config.format': { type: 'json_schema', schema: SCHEMA },
    output_format: { type: 'json_schema', schema: SCHEMA },
    stop_sequences: ['x'],
    stream: true,
    system: 'be brief',
    temperature: 0.5,
    thread: { type: 'continue', previous_message_id: 'cpl_1' },
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
    tools: [],
    top_k: 4,
    top_p: 0.5,
  },
  noted: {
    container: 'c',
    context_management: { edits: [{ type: 'clear_thinking_20251015' }] },
    mcp_servers: [{ url: 'x' }],
    'output_config.effort': 'low',
    'output_config.task_budget': { type: 'tokens', total: 5 },
    speed: 'fast',
    thinking: { type: 'adaptive' },
    'tools.0.allowed_callers': ['code'],
    'tools.0.input_examples': [{ n: 1 }],
    'tools.0.strict': true,
  },
  harmless: {
    anthropic_version: 'vertex-2023-10-16',
    betas: ['x'],
    cache_control: { type: 'ephemeral' },
    inference_geo: 'eu',
    metadata: { user_id: 'u' },
    service_tier: 'auto',
    'tools.0.cache_control': { type: 'ephemeral' },
    'tools.0.eager_input_streaming': true,
  },
  refused: {},
};

const RESPONSES_BASE = {
  model: 'm',
  input: 'hi',
  tools: [{ type: 'function', name: 'f', parameters: SCHEMA, strict: false }],
};

const RESPONSES: FieldTable = {
  used: {
    include: ['reasoning.encrypted_content'],
    input: 'ho',
    instructions: 'be brief',
    max_output_tokens: 5,
    model: 'other',
    parallel_tool_calls: false,
    previous_response_id: 'resp_cpl_1',
    stream: true,
    temperature: 0.5,
    'text.format': { type: 'json_object' },
    tool_choice: 'required',
    tools: [],
    top_p: 0.5,
  },
  noted: {
    context_management: [{ type: 'compaction', compact_threshold: 5 }],
    frequency_penalty: 1,
    include: ['message.output_text.logprobs'],
    logit_bias: { '1': 2 },
    max_tool_calls: 0,
    min_p: 0.1,
    presence_penalty: 1,
    'reasoning.effort': 'low',
    seed: 0,
    stop: ['x'],
    'stream_options.other': true,
    'text.verbosity': 'low',
    'tools.0.output_schema': SCHEMA,
    'tools.0.strict': true,
    top_k: 4,
    top_logprobs: 2,
    truncation: 'auto',
  },
  harmless: {
    client_metadata: { a: 'b' },
    metadata: { a: 'b' },
    prompt_cache_key: 'k',
    prompt_cache_options: { mode: 'explicit' },
    prompt_cache_retention: '24h',
    'reasoning.generate_summary': 'auto',
    'reasoning.summary': 'auto',
    safety_identifier: 's',
    service_tier: 'flex',
    store: true,
    'stream_options.include_obfuscation': true,
    truncation: 'disabled',
    user: 'u',
  },
  refused: { background: true, conversation: 'conv_1', prompt: { id: 'p' } },
};

const GEMINI_BASE = {
  contents: [{ role: 'user', parts: [{ text: 'hi' }] }],
  tools: [{ functionDeclarations: [{ name: 'f', parametersJsonSchema: SCHEMA }] }],
};

const GEMINI: FieldTable = {
  used: {
    contents: [{ role: 'user', parts: [{ text: 'ho' }] }],
    'generationConfig.maxOutputTokens': 5,
    'generationConfig.max_output_tokens': 5,
    'generationConfig.responseMimeType': 'application/json',
    'generationConfig.seed': 3,
    'generationConfig.stopSequences': ['x'],
    'generationConfig.temperature': 0.5,
    'generationConfig.topK': 4,
    'generationConfig.topP': 0.5,
    systemInstruction: { parts: [{ text: 'be brief' }] },
    'toolConfig.functionCallingConfig.mode': 'ANY',
    tools: [],
  },
  noted: {
    'generationConfig.audioTimestamp': true,
    'generationConfig.frequencyPenalty': 1,
    'generationConfig.imageConfig': { aspectRatio: '1:1' },
    'generationConfig.logprobs': 2,
    'generationConfig.mediaResolution': 'MEDIA_RESOLUTION_LOW',
    'generationConfig.presence_penalty': 1,
    'generationConfig.responseLogprobs': true,
    'generationConfig.responseModalities': ['AUDIO'],
    'generationConfig.responseSchema': SCHEMA,
    'generationConfig.routingConfig': { autoMode: {} },
    'generationConfig.speechConfig': { languageCode: 'de' },
    'generationConfig.thinkingConfig': { thinkingBudget: 5 },
    'toolConfig.functionCallingConfig.allowedFunctionNames': ['f', 'g'],
    'toolConfig.functionCallingConfig.streamFunctionCallArguments': true,
    'toolConfig.includeServerSideToolInvocations': true,
    'toolConfig.retrievalConfig': { languageCode: 'de' },
    'tools.0.functionDeclarations.0.behavior': 'BLOCKING',
    'tools.0.functionDeclarations.0.response': SCHEMA,
  },
  harmless: {
    labels: { a: 'b' },
    safetySettings: [{ category: 'c', threshold: 't' }],
    service_tier: 'flex',
    serviceTier: 'flex',
    store: true,
    'generationConfig.candidateCount': 1,
  },
  refused: { cachedContent: 'c', 'generationConfig.candidateCount': 2 },
};

const TABLES: Readonly<Record<DialectName, { readonly base: object; readonly fields: FieldTable }>> = {
  openai_chat: { base: CHAT_BASE, fields: CHAT },
  anthropic: { base: ANTHROPIC_BASE, fields: ANTHROPIC },
  openai_responses: { base: RESPONSES_BASE, fields: RESPONSES },
  gemini: { base: GEMINI_BASE, fields: GEMINI },
};

/** Returns a deep copy of `base` with the field at `path` set to `value`. Objects on the way are created. */
function withField(base: object, path: string, value: unknown): object {
  const copy: Record<string, unknown> = structuredClone(base) as Record<string, unknown>;
  const names = path.split('.');
  const last = names.pop() as string;
  let owner = copy;
  for (const name of names) {
    owner[name] ??= {};
    owner = owner[name] as Record<string, unknown>;
  }
  owner[last] = value;
  return copy;
}

function parse(dialect: Dialect, body: object): CanonicalRequest {
  const context: CallContext = { ...plainContext(), ...(dialect.name === 'gemini' ? { model: 'm' } : {}) };
  return dialect.parseRequest(body, context);
}

function cases(fields: FieldTable, treatment: Treatment): [string, unknown][] {
  return Object.entries(fields[treatment]);
}

for (const dialect of DIALECTS) {
  describe(`the fields of a request of ${dialect.name}`, () => {
    const { base, fields } = TABLES[dialect.name];
    const plain = parse(dialect, base);

    it.each(cases(fields, 'used'))('%s is used and not noted', (path, value) => {
      const { adjusted, ...request } = parse(dialect, withField(base, path, value));
      expect(request).not.toEqual({ ...plain, adjusted: undefined });
      expect(adjusted).toEqual([]);
    });

    it.each(cases(fields, 'noted'))('%s has no effect and is noted by its name', (path, value) => {
      const { adjusted, ...request } = parse(dialect, withField(base, path, value));
      expect({ ...request, adjusted: [] }).toEqual(plain);
      expect(adjusted).toHaveLength(1);
      const name = path.split('.').at(-1) as string;
      const camel = name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
      const words = path === 'generationConfig.responseSchema' ? ['response schema'] : [name, camel];
      expect(words.some((word) => adjusted[0]?.includes(word))).toBe(true);
    });

    it.each(cases(fields, 'harmless'))('%s has no effect and needs no note', (path, value) => {
      expect(parse(dialect, withField(base, path, value))).toEqual(plain);
    });

    if (Object.keys(fields.refused).length > 0) {
      it.each(cases(fields, 'refused'))('%s is refused by its name', (path, value) => {
        const name = path.split('.').at(-1) as string;
        expect(() => parse(dialect, withField(base, path, value))).toThrow(name);
      });
    }

    it('is noted when floe does not know it', () => {
      expect(parse(dialect, { ...base, field_of_tomorrow: 'x' }).adjusted).toEqual([
        `${dialect.name === 'gemini' ? 'fieldOfTomorrow' : 'field_of_tomorrow'} ignored`,
      ]);
    });
  });
}

describe('the lists of harmless fields', () => {
  it.each([
    ['openai_chat', chatFields.HARMLESS_FIELDS],
    ['anthropic', anthropicFields.HARMLESS_FIELDS],
    ['openai_responses', responsesFields.HARMLESS_FIELDS],
    ['gemini', geminiFields.HARMLESS_FIELDS],
  ] as const)('contain for %s only fields that are tested, each with a reason', (name, harmless) => {
    const tested = Object.keys(TABLES[name].fields.harmless);
    expect(Object.keys(harmless).filter((field) => !tested.includes(field))).toEqual([]);
    expect(Object.values(harmless).filter((reason) => reason.length < 8)).toEqual([]);
  });
});
