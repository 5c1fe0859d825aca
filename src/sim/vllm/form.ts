import { z } from 'zod';
import { FloeError } from '../../core/errors.ts';
import type { Constraint } from '../constraint.ts';
import type { JsonSchema } from '../json-schema.ts';
import type { Policy } from '../policy.ts';

const schemaSchema = z.union([z.boolean(), z.record(z.string(), z.unknown())]);

export const responseFormatSchema = z.looseObject({
  type: z.string(),
  json_schema: z
    .looseObject({ name: z.string(), schema: schemaSchema.nullish(), strict: z.boolean().nullish() })
    .nullish(),
});

/** vLLM takes a schema as an object or as its text. */
export const structuredOutputsSchema = z.looseObject({
  json: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish(),
  json_object: z.boolean().nullish(),
});

export const toolChoiceSchema = z.union([
  z.string(),
  z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) }),
]);

/** The fields of a chat request that bear on the reply's form. */
export type FormRequest = {
  readonly tools?: readonly unknown[] | null | undefined;
  readonly tool_choice?: z.infer<typeof toolChoiceSchema> | null | undefined;
  readonly response_format?: z.infer<typeof responseFormatSchema> | null | undefined;
  readonly structured_outputs?: z.infer<typeof structuredOutputsSchema> | null | undefined;
};

export type StructuredOutputs = z.infer<typeof structuredOutputsSchema> | null | undefined;

const constraintSchema: z.ZodType<Constraint> = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('json'), schema: schemaSchema, or_calls: z.boolean() }),
  z.strictObject({ kind: z.literal('call'), name: z.string().nullable() }),
]);

const ANY_OBJECT: JsonSchema = { type: 'object' };

/** A constraint and the field of the request that asked for it. */
type Demand = { readonly constraint: Constraint; readonly field: string };

/**
 * What the request demands of the reply's form, if the policy can fulfil it for this prompt. As in vLLM, a forced tool
 * call outweighs a format, and with tools to choose from a reply of calls alone satisfies a format.
 * Throws `engine_rejected` naming the field for a demand that is malformed, unsupported, or that no reply fulfils.
 */
export function demandedForm(request: FormRequest, policy: Policy, promptIds: readonly number[]): Constraint | null {
  return fulfillable(callDemand(request) ?? formatDemand(request), policy, promptIds);
}

/** A constraint as token generation takes it: rendered here, understood here, and nowhere else. */
export function renderedForm(constraint: Constraint | null): object | null {
  return constraint === null ? null : { structural_tag: JSON.stringify(constraint) };
}

/** As {@link demandedForm}, of a request for token generation. */
export function generateForm(
  outputs: StructuredOutputs,
  policy: Policy,
  promptIds: readonly number[],
): Constraint | null {
  const { structural_tag: tag, ...rest } = outputs ?? {};
  if (tag === undefined || tag === null) {
    return fulfillable(formatDemand({ structured_outputs: rest }), policy, promptIds);
  }
  const parsed = constraintSchema.safeParse(typeof tag === 'string' ? parsedJson(tag) : null);
  if (!parsed.success) throw refusal('structured_outputs', 'only a structural_tag rendered here is supported');
  return fulfillable({ constraint: parsed.data, field: 'structured_outputs' }, policy, promptIds);
}

function fulfillable(demand: Demand | null, policy: Policy, promptIds: readonly number[]): Constraint | null {
  if (demand === null) return null;
  let admitted: boolean;
  try {
    admitted = policy.admits(promptIds, demand.constraint);
  } catch (error) {
    if (FloeError.is(error) && error.code === 'engine_rejected') throw refusal(demand.field, error.message, error);
    throw error;
  }
  if (!admitted) throw refusal(demand.field, 'the scenario has no reply that fulfils it');
  return demand.constraint;
}

function refusal(field: string, what: string, cause?: unknown): FloeError {
  return new FloeError('engine_rejected', `${field}: ${what}`, { param: field }, cause);
}

/** Whether tool calls are looked for in the reply. */
export function readsCalls({ tools, tool_choice: choice }: FormRequest): boolean {
  return (tools ?? []).length > 0 && choice !== 'none';
}

/** Whether the request leaves the model no choice but to call. */
export function forcesCalls({ tool_choice: choice }: FormRequest): boolean {
  return choice === 'required' || typeof choice === 'object';
}

function callDemand({ tools, tool_choice: choice }: FormRequest): Demand | null {
  const field = 'tool_choice';
  if (choice === undefined || choice === null || choice === 'none') return null;
  if (typeof choice === 'string' && choice !== 'auto' && choice !== 'required') {
    const known = 'Only named tools, "none", "auto" or "required" are supported.';
    throw refusal(field, `Invalid value for \`tool_choice\`: ${choice}! ${known}`);
  }
  if (tools === undefined || tools === null) throw refusal(field, 'When using `tool_choice`, `tools` must be set.');
  if (choice === 'auto' || tools.length === 0) return null;
  if (choice === 'required') return { constraint: { kind: 'call', name: null }, field };
  const { name } = (choice as { readonly function: { readonly name: string } }).function;
  if (!tools.some((tool) => toolName(tool) === name)) {
    throw refusal(field, 'The tool specified in `tool_choice` does not match any of the specified `tools`.');
  }
  return { constraint: { kind: 'call', name }, field };
}

const toolSchema = z.looseObject({ function: z.looseObject({ name: z.string() }) });

function toolName(tool: unknown): string | null {
  const parsed = toolSchema.safeParse(tool);
  return parsed.success ? parsed.data.function.name : null;
}

function formatDemand(request: FormRequest): Demand | null {
  const { response_format: format, structured_outputs: outputs } = request;
  const demand = (field: string, schema: JsonSchema): Demand => ({
    constraint: { kind: 'json', schema, or_calls: readsCalls(request) },
    field,
  });
  switch (format?.type) {
    case undefined:
    case 'text':
      break;
    case 'json_object':
      return demand('response_format', ANY_OBJECT);
    case 'json_schema':
      if (format.json_schema === undefined || format.json_schema === null) {
        throw refusal('response_format', 'When using the type `json_schema`, `json_schema` must be set.');
      }
      return demand('response_format', format.json_schema.schema ?? true);
    default:
      throw refusal('response_format', `the type ${format?.type} is not supported by the simulated engine`);
  }
  if (outputs === undefined || outputs === null) return null;
  const other = Object.keys(outputs).find((key) => !STRUCTURED_KEYS.has(key) && outputs[key] != null);
  if (other !== undefined) throw refusal('structured_outputs', `${other} is not supported by the simulated engine`);
  if (outputs.json_object === true) return demand('structured_outputs', ANY_OBJECT);
  if (outputs.json === undefined || outputs.json === null) return null;
  return demand('structured_outputs', typeof outputs.json === 'string' ? parsedSchema(outputs.json) : outputs.json);
}

/** What a scripted reply can be judged by, and the settings of a grammar compiler, which change nothing here. */
const STRUCTURED_KEYS: ReadonlySet<string> = new Set([
  'json',
  'json_object',
  'disable_fallback',
  'disable_any_whitespace',
  'disable_additional_properties',
  'whitespace_pattern',
]);

function parsedSchema(text: string): JsonSchema {
  const parsed = schemaSchema.safeParse(parsedJson(text));
  if (!parsed.success) throw refusal('structured_outputs', 'json is no JSON schema');
  return parsed.data;
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw refusal('structured_outputs', `json is no JSON: ${(cause as Error).message}`, cause);
  }
}
