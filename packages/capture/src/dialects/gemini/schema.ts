import { isRecord } from '@floe-rl/core';
import { z } from 'zod';
import type { HarmlessFields } from '../ignored-fields.ts';
import { type JsonObject, jsonObjectSchema } from '../json-object.ts';

/** Name of this kind of request in error messages. */
export const REQUEST_NAME = 'generate content request';

/**
 * Makes the schema of an object whose fields may also be spelled in snake_case, which Google's parser accepts. Errors name the field in
 * camelCase. Fields that are not in `shape` are dropped.
 */
function aliased<Shape extends z.ZodRawShape>(shape: Shape) {
  const spellings = new Map<string, string>();
  for (const camel of Object.keys(shape)) {
    const snake = camel.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if (snake !== camel) spellings.set(snake, camel);
  }
  return z.preprocess((value) => (isRecord(value) ? inCamelCase(value, spellings) : value), z.object(shape));
}

/** Returns an object with the names of its fields in camelCase. */
export function withCamelCaseNames(value: unknown): JsonObject {
  if (!isRecord(value)) return {};
  const camel = (name: string): string => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [camel(name), field]));
}

function inCamelCase(value: JsonObject, spellings: ReadonlyMap<string, string>): JsonObject {
  let copy: JsonObject | null = null;
  for (const key of Object.keys(value)) {
    if (!key.includes('_')) continue;
    const camel = spellings.get(key);
    if (camel === undefined) continue;
    copy ??= { ...value };
    copy[camel] ??= value[key];
  }
  return copy ?? value;
}

/**
 * Makes the schema of a list that may also be written as a single object. Google's parser accepts a single object, and Google's examples
 * write `parts` in this form.
 */
function listOf<Item extends z.ZodType>(item: Item, min = 0) {
  return z.preprocess((value) => (isRecord(value) ? [value] : value), z.array(item).min(min));
}

const inlineData = aliased({ mimeType: z.string(), data: z.string() }).nullish();
const fileData = aliased({ mimeType: z.string().nullish(), fileUri: z.string() }).nullish();

const functionCallSchema = aliased({
  name: z.string(),
  args: jsonObjectSchema.nullish(),
  id: z.string().nullish(),
});

const functionResponseSchema = aliased({
  name: z.string(),
  response: jsonObjectSchema.nullish(),
  id: z.string().nullish(),
  parts: listOf(aliased({ inlineData, fileData })).nullish(),
});
export type WireResult = z.output<typeof functionResponseSchema>;

const partSchema = aliased({
  text: z.string().nullish(),
  thought: z.boolean().nullish(),
  thoughtSignature: z.string().nullish(),
  functionCall: functionCallSchema.nullish(),
  functionResponse: functionResponseSchema.nullish(),
  inlineData,
  fileData,
  executableCode: z.unknown().optional(),
  codeExecutionResult: z.unknown().optional(),
  toolCall: z.unknown().optional(),
  toolResponse: z.unknown().optional(),
});
export type WirePart = z.output<typeof partSchema>;
export type WireMedia = Pick<WirePart, 'inlineData' | 'fileData'>;

const contentSchema = aliased({
  role: z.enum(['user', 'model', 'function']).nullish(),
  parts: listOf(partSchema).nullish(),
});
export type WireContent = z.output<typeof contentSchema>;

export const DECLARATION_FIELDS = {
  name: z.string(),
  description: z.string().nullish(),
  parameters: jsonObjectSchema.nullish(),
  parametersJsonSchema: jsonObjectSchema.nullish(),
};
export const declarationsSchema = listOf(aliased(DECLARATION_FIELDS));

export const CALLING_FIELDS = {
  mode: z.enum(['MODE_UNSPECIFIED', 'AUTO', 'ANY', 'NONE', 'VALIDATED']).nullish(),
  allowedFunctionNames: z.array(z.string()).nullish(),
};
const functionCallingSchema = aliased(CALLING_FIELDS);
export type WireCalling = z.output<typeof functionCallingSchema>;

export const GENERATION_FIELDS = {
  temperature: z.number().nullish(),
  topP: z.number().nullish(),
  topK: z.number().nullish(),
  maxOutputTokens: z.int().min(1).nullish(),
  stopSequences: z.array(z.string()).nullish(),
  seed: z.int().nullish(),
  candidateCount: z.int().nullish(),
  responseMimeType: z.string().nullish(),
  responseSchema: jsonObjectSchema.nullish(),
  responseJsonSchema: jsonObjectSchema.nullish(),
};
const generationSchema = aliased(GENERATION_FIELDS);
export type WireGeneration = z.output<typeof generationSchema>;

/** Fields that concern only the vendor's bookkeeping and filters. */
export const HARMLESS_FIELDS: HarmlessFields = {
  labels: 'labels of a bill',
  safetySettings: "thresholds of the vendor's filters",
  serviceTier: 'selects a price',
  store: 'every completion is recorded',
};

/**
 * Schema of a GenerateContentRequest. The parts that a content may contain depend on its role, so they are checked later, when the content
 * is translated.
 */
export const REQUEST_FIELDS = {
  model: z.string().nullish(),
  contents: listOf(contentSchema, 1),
  /** The role of the system instruction is not part of the schema, because it has no effect. */
  systemInstruction: aliased({ parts: listOf(partSchema).nullish() }).nullish(),
  tools: listOf(jsonObjectSchema).nullish(),
  toolConfig: aliased({ functionCallingConfig: functionCallingSchema.nullish() }).nullish(),
  generationConfig: generationSchema.nullish(),
  cachedContent: z.string().nullish(),
};
export const requestSchema = aliased(REQUEST_FIELDS);
export type WireRequest = z.output<typeof requestSchema>;

export const countSchema = aliased({ generateContentRequest: jsonObjectSchema.nullish() });
