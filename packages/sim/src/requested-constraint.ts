import { FloeError } from '@floe-rl/core';
import { z } from 'zod';
import type { Constraint } from './policy/constraint.ts';
import type { JsonSchema } from './policy/json-schema.ts';
import type { Policy } from './policy/policy.ts';

const jsonSchemaSchema = z.union([z.boolean(), z.record(z.string(), z.unknown())]);

export const responseFormatSchema = z.looseObject({
  type: z.string(),
  json_schema: z
    .looseObject({ name: z.string(), schema: jsonSchemaSchema.nullish(), strict: z.boolean().nullish() })
    .nullish(),
});

/** The request field `structured_outputs`. vLLM accepts its schema as an object or as JSON text. */
export const structuredOutputsSchema = z.looseObject({
  json: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish(),
  json_object: z.boolean().nullish(),
});

export const toolChoiceSchema = z.union([
  z.string(),
  z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string() }) }),
]);

/** The fields of a chat request that constrain the format of the reply. */
export type ConstraintFields = {
  readonly tools?: readonly unknown[] | null | undefined;
  readonly tool_choice?: z.infer<typeof toolChoiceSchema> | null | undefined;
  readonly response_format?: z.infer<typeof responseFormatSchema> | null | undefined;
  readonly structured_outputs?: z.infer<typeof structuredOutputsSchema> | null | undefined;
};

type StructuredOutputs = z.infer<typeof structuredOutputsSchema> | null | undefined;

const constraintSchema: z.ZodType<Constraint> = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('json'), schema: jsonSchemaSchema, or_calls: z.array(z.string()) }),
  z.strictObject({ kind: z.literal('call'), names: z.array(z.string()) }),
]);

const ANY_OBJECT: JsonSchema = { type: 'object' };

/** A constraint and the name of the request field that demands it. */
type Demand = { readonly constraint: Constraint; readonly field: string };

/**
 * Returns the constraint (a format or a forced tool call) that a chat request puts on the reply; `null` when it puts none. As in vLLM, a
 * forced tool call takes precedence over a format. When the request offers tools, a reply that consists of calls of these tools satisfies
 * every format. Throws `engine_rejected`, naming the field, when the constraint is malformed or unsupported, or when the policy has no reply to
 * this prompt that satisfies the constraint.
 */
export function requestedConstraint(
  request: ConstraintFields,
  policy: Policy,
  promptIds: readonly number[],
): Constraint | null {
  return ensureSatisfiable(callDemand(request) ?? formatDemand(request), policy, promptIds);
}

/**
 * Returns the constraint as the field `structured_outputs` of a request to `/inference/v1/generate`, in a form that only the simulator
 * understands.
 */
export function renderConstraint(constraint: Constraint | null): object | null {
  return constraint === null ? null : { structural_tag: JSON.stringify(constraint) };
}

/** Returns the constraint that a request to `/inference/v1/generate` puts on the reply, in the same way as {@link requestedConstraint}. */
export function generateConstraint(
  outputs: StructuredOutputs,
  policy: Policy,
  promptIds: readonly number[],
): Constraint | null {
  const { structural_tag: tag, ...rest } = outputs ?? {};
  if (tag === undefined || tag === null) {
    return ensureSatisfiable(formatDemand({ structured_outputs: rest }), policy, promptIds);
  }
  const parsed = constraintSchema.safeParse(typeof tag === 'string' ? parsedJson(tag) : null);
  if (!parsed.success)
    throw refusal('structured_outputs', 'only a structural_tag that this server rendered is supported');
  return ensureSatisfiable({ constraint: parsed.data, field: 'structured_outputs' }, policy, promptIds);
}

function ensureSatisfiable(demand: Demand | null, policy: Policy, promptIds: readonly number[]): Constraint | null {
  if (demand === null) return null;
  let canSatisfy: boolean;
  try {
    canSatisfy = policy.canSatisfy(promptIds, demand.constraint);
  } catch (error) {
    if (FloeError.is(error) && error.code === 'engine_rejected') throw refusal(demand.field, error.message, error);
    throw error;
  }
  if (!canSatisfy) throw refusal(demand.field, 'no reply of the scenario satisfies it');
  return demand.constraint;
}

function refusal(field: string, message: string, cause?: unknown): FloeError {
  return new FloeError('engine_rejected', `${field}: ${message}`, { param: field }, cause);
}

/** Whether the server parses tool calls in the reply to this request. */
export function parsesToolCalls({ tools, tool_choice: choice }: ConstraintFields): boolean {
  return (tools ?? []).length > 0 && choice !== 'none';
}

/** Whether the request forces the model to call a tool. */
export function forcesToolCall({ tool_choice: choice }: ConstraintFields): boolean {
  return choice === 'required' || typeof choice === 'object';
}

function callDemand({ tools, tool_choice: choice }: ConstraintFields): Demand | null {
  const field = 'tool_choice';
  if (choice === undefined || choice === null || choice === 'none') return null;
  if (typeof choice === 'string' && choice !== 'auto' && choice !== 'required') {
    const supported = 'Only named tools, "none", "auto" or "required" are supported.';
    throw refusal(field, `Invalid value for \`tool_choice\`: ${choice}! ${supported}`);
  }
  if (tools === undefined || tools === null) throw refusal(field, 'When using `tool_choice`, `tools` must be set.');
  if (choice === 'auto' || tools.length === 0) return null;
  const offered = namesOf(tools);
  if (choice === 'required') return { constraint: { kind: 'call', names: offered }, field };
  const { name } = (choice as { readonly function: { readonly name: string } }).function;
  if (!offered.includes(name)) {
    throw refusal(field, 'The tool specified in `tool_choice` does not match any of the specified `tools`.');
  }
  return { constraint: { kind: 'call', names: [name] }, field };
}

const toolSchema = z.looseObject({ function: z.looseObject({ name: z.string() }) });

/** Returns the names of the tools that a request offers. */
function namesOf(tools: ConstraintFields['tools']): string[] {
  return (tools ?? []).flatMap((tool) => {
    const parsed = toolSchema.safeParse(tool);
    return parsed.success ? [parsed.data.function.name] : [];
  });
}

function formatDemand(request: ConstraintFields): Demand | null {
  const { response_format: format, structured_outputs: outputs } = request;
  const demand = (field: string, schema: JsonSchema): Demand => ({
    constraint: { kind: 'json', schema, or_calls: parsesToolCalls(request) ? namesOf(request.tools) : [] },
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

/**
 * The accepted keys of `structured_outputs`: keys that the simulator supports, and settings of grammar compilers, which the simulator ignores.
 */
const STRUCTURED_KEYS: ReadonlySet<string> = new Set([
  'json',
  'json_object',
  'disable_fallback',
  'disable_any_whitespace',
  'disable_additional_properties',
  'whitespace_pattern',
]);

function parsedSchema(text: string): JsonSchema {
  const parsed = jsonSchemaSchema.safeParse(parsedJson(text));
  if (!parsed.success) throw refusal('structured_outputs', 'json is not a JSON schema');
  return parsed.data;
}

function parsedJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw refusal('structured_outputs', `json is not valid JSON: ${(cause as Error).message}`, cause);
  }
}
