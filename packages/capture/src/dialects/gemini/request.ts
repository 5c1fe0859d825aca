import { FloeError, parseAs } from '@floe-rl/core';
import type { ChatTool, RequestedSampling, ResponseFormat, ToolChoice } from '@floe-rl/core/schema';
import { labelCall } from '../call-kinds/label.ts';
import { Conversation } from '../conversation.ts';
import type { CallContext, CanonicalRequest } from '../dialect.ts';
import { noteIgnoredFields } from '../ignored-fields.ts';
import { addContents, instructionText } from './history.ts';
import { jsonSchemaOf } from './json-schema.ts';
import {
  CALLING_FIELDS,
  countSchema,
  DECLARATION_FIELDS,
  declarationsSchema,
  GENERATION_FIELDS,
  HARMLESS_FIELDS,
  REQUEST_FIELDS,
  REQUEST_NAME,
  requestSchema,
  type WireCalling,
  type WireGeneration,
  type WireRequest,
  withCamelCaseNames,
} from './schema.ts';

/**
 * Maximum number of characters of the name of a hosted tool in a note about the request. The name comes from the client, and all real names
 * are shorter.
 */
const MAX_TOOL_KIND_CHARS = 64;

export function parseGenerateRequest(body: unknown, context: CallContext): CanonicalRequest {
  const request = parseAs(requestSchema, body, REQUEST_NAME);
  const last = request.contents.length - 1;
  if (request.contents[last]?.role === 'model') {
    throw new FloeError(
      'unsupported',
      `contents.${last}: a model content at the end cannot be continued (prefill); the last content must be the user's`,
    );
  }
  return canonical(request, body, context, '');
}

/** Parses a `countTokens` request, which contains either contents alone or a whole request in `generateContentRequest`. */
export function parseCountRequest(body: unknown, context: CallContext): CanonicalRequest {
  const { generateContentRequest } = parseAs(countSchema, body, REQUEST_NAME);
  if (!generateContentRequest) return canonical(parseAs(requestSchema, body, REQUEST_NAME), body, context, '');
  const at = 'generateContentRequest';
  const request = parseAs(requestSchema, generateContentRequest, REQUEST_NAME, at);
  return canonical(request, generateContentRequest, context, `${at}.`);
}

/**
 * Converts a parsed request to floe's internal form. `body` is the request before parsing, which still contains the fields that have no
 * schema. `at` is the prefix of field names in error messages.
 */
function canonical(request: WireRequest, body: unknown, context: CallContext, at: string): CanonicalRequest {
  const { headers, query, callRules } = context;
  const settings: WireGeneration = request.generationConfig ?? {};
  if ((settings.candidateCount ?? 1) !== 1) {
    throw new FloeError('unsupported', `${at}generationConfig.candidateCount: only one candidate can be recorded`);
  }
  if (request.cachedContent) {
    throw new FloeError('unsupported', `${at}cachedContent: send the contents themselves`);
  }
  const conversation = new Conversation();
  const instruction = instructionText(
    conversation,
    request.systemInstruction?.parts ?? [],
    `${at}systemInstruction.parts`,
  );
  if (instruction !== '') conversation.system(instruction);
  addContents(conversation, request.contents, `${at}contents`);
  conversation.noteCallIds();
  noteIgnored(conversation, body);
  const tools = toolsOf(request, conversation, at);
  const toolChoice = toolChoiceOf(request.toolConfig?.functionCallingConfig, tools, conversation);
  const samplingAsked = samplingOf(settings, conversation);
  const { messages, adjusted, claimedCompletions } = conversation.finish();
  return {
    model: modelOf(request, context, at),
    messages,
    tools,
    toolForms: new Map(),
    toolChoice,
    parallelToolCalls: null,
    samplingAsked,
    stream: context.stream ?? false,
    streamUsage: true,
    ...(context.stream === true && query.get('alt') !== 'sse' ? { streamAsArray: true as const } : {}),
    previousCompletionId: null,
    claimedCompletions,
    adjusted,
    ...labelCall(callRules, { headers, messages, tools, responseFormat: samplingAsked.response_format }),
  };
}

function noteIgnored(conversation: Conversation, body: unknown): void {
  const { generationConfig, toolConfig, ...request } = withCamelCaseNames(body);
  noteIgnoredFields(conversation, request, { used: REQUEST_FIELDS, harmless: HARMLESS_FIELDS });
  const settings = withCamelCaseNames(generationConfig);
  noteIgnoredFields(conversation, settings, { used: GENERATION_FIELDS, harmless: {} }, 'generationConfig.');
  const { functionCallingConfig, ...others } = withCamelCaseNames(toolConfig);
  noteIgnoredFields(conversation, others, { used: {}, harmless: {} }, 'toolConfig.');
  const calling = withCamelCaseNames(functionCallingConfig);
  noteIgnoredFields(conversation, calling, { used: CALLING_FIELDS, harmless: {} }, 'functionCallingConfig.');
}

/**
 * Returns the name of the model, from the URL path if it contains one. The request inside a `countTokens` request has the name in its body,
 * as `models/<name>`.
 */
function modelOf(request: WireRequest, { model }: CallContext, at: string): string {
  const name = model ?? request.model?.replace(/^models\//, '');
  if (!name)
    throw new FloeError('schema_violation', `${REQUEST_NAME}: ${at}model: neither the path nor the body names one`);
  return name;
}

/** Translates function declarations. Tools of other kinds run on the servers of the vendor and are dropped. */
function toolsOf(request: WireRequest, conversation: Conversation, at: string): ChatTool[] {
  const tools: ChatTool[] = [];
  for (const [index, tool] of (request.tools ?? []).entries()) {
    for (const [key, value] of Object.entries(tool)) {
      if (value === null) continue;
      if (key !== 'functionDeclarations' && key !== 'function_declarations') {
        conversation.note(`hosted tool ${key.slice(0, MAX_TOOL_KIND_CHARS)} dropped`);
        continue;
      }
      const path = `${at}tools.${index}.functionDeclarations`;
      for (const declared of Array.isArray(value) ? value : [value]) {
        const known = { used: DECLARATION_FIELDS, harmless: {} };
        noteIgnoredFields(conversation, withCamelCaseNames(declared), known, 'functionDeclarations.');
      }
      for (const declaration of parseAs(declarationsSchema, value, REQUEST_NAME, path)) {
        const { name, description } = declaration;
        const parameters = declaration.parametersJsonSchema ?? declaration.parameters;
        tools.push({
          type: 'function',
          function: {
            name,
            ...(description ? { description } : {}),
            ...(parameters ? { parameters: jsonSchemaOf(parameters) } : {}),
          },
        });
      }
    }
  }
  return tools;
}

function toolChoiceOf(
  calling: WireCalling | null | undefined,
  tools: readonly ChatTool[],
  conversation: Conversation,
): ToolChoice | null {
  const allowed = calling?.allowedFunctionNames ?? [];
  const [only] = allowed;
  if (calling?.mode === 'ANY' && only !== undefined && allowed.length === 1) {
    return conversation.forcedTool(only, tools);
  }
  if (allowed.length > 0) conversation.note('allowedFunctionNames ignored');
  switch (calling?.mode) {
    case 'ANY':
      return 'required';
    case 'NONE':
      return 'none';
    case 'VALIDATED':
      conversation.note('mode VALIDATED treated as AUTO');
      return 'auto';
    case 'AUTO':
      return 'auto';
    default:
      return null;
  }
}

function samplingOf(settings: WireGeneration, conversation: Conversation): RequestedSampling {
  const { temperature, topP, topK, maxOutputTokens, stopSequences, seed } = settings;
  const format = formatOf(settings, conversation);
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(topP == null ? {} : { top_p: topP }),
    ...(topK == null ? {} : { top_k: topK }),
    ...(maxOutputTokens == null ? {} : { max_tokens: maxOutputTokens }),
    ...(stopSequences == null || stopSequences.length === 0 ? {} : { stop: stopSequences }),
    ...(seed == null ? {} : { seed }),
    ...(format === null ? {} : { response_format: format }),
  };
}

function formatOf(settings: WireGeneration, conversation: Conversation): ResponseFormat | null {
  const schema = settings.responseJsonSchema ?? settings.responseSchema;
  const type = settings.responseMimeType || 'text/plain';
  if (type === 'application/json') {
    if (!schema) return { type: 'json_object' };
    // Engines require a name for the JSON schema of a reply. Gemini requests have no field for the name, so it is fixed.
    return { type: 'json_schema', json_schema: { name: 'response', schema: jsonSchemaOf(schema) } };
  }
  if (type !== 'text/plain') conversation.note('responseMimeType ignored');
  else if (schema) conversation.note('response schema ignored: responseMimeType is not application/json');
  return null;
}
