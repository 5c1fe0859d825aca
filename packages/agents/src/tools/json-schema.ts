import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import type { JsonSchema } from './tool.ts';

/** Arguments that fit a schema, with defaults filled in, or what is wrong with them. */
export type CheckedArguments = { readonly args: unknown } | { readonly problem: string };

/** Maximum number of problems with the arguments of a call that its answer names. */
const MAX_PROBLEMS = 3;

// Schemas of other systems have keywords and formats of their own, which are ignored.
const ajv = new Ajv2020({ strict: false, allErrors: false, useDefaults: true, validateFormats: false, logger: false });
const validators = new WeakMap<JsonSchema, (value: unknown) => CheckedArguments>();

/**
 * Returns a function that checks arguments against a JSON Schema that comes from another system. Throws an Error for a schema that is
 * invalid.
 */
export function validatorOf(schema: JsonSchema): (value: unknown) => CheckedArguments {
  const known = validators.get(schema);
  if (known !== undefined) return known;
  const { $schema: _, $id: __, ...rules } = schema;
  const validate: ValidateFunction = ajv.compile(rules);
  // Schemas of MCP servers arrive in every session, so that they must not be kept for longer than their tools.
  ajv.removeSchema(rules);
  const check = (value: unknown): CheckedArguments => {
    if (validate(value)) return { args: value };
    const problems = (validate.errors ?? []).map(({ instancePath, message }) =>
      `${instancePath.slice(1).replaceAll('/', '.')}: ${message}`.replace(/^: /, ''),
    );
    return { problem: problems.slice(0, MAX_PROBLEMS).join('; ') };
  };
  validators.set(schema, check);
  return check;
}
