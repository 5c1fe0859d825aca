import type { ChatTool } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedArguments, validatorOf } from './json-schema.ts';
import type { AnyTool, JsonSchema } from './tool.ts';

/** Maximum number of problems with the arguments of a call that its answer names. */
const MAX_PROBLEMS = 3;

/** Checks the arguments of a call against the schema of its tool. */
export function checkArguments({ parameters }: AnyTool, value: unknown): CheckedArguments {
  if (!isZod(parameters)) return validatorOf(parameters)(value);
  const parsed = parameters.safeParse(value);
  if (parsed.success) return { args: parsed.data };
  const problems = parsed.error.issues.map(({ path, message }) =>
    path.length === 0 ? message : `${path.map(String).join('.')}: ${message}`,
  );
  return { problem: problems.slice(0, MAX_PROBLEMS).join('; ') };
}

/** Declarations of tools, which do not change. Models see each of them in every call. */
const declarations = new WeakMap<AnyTool, ChatTool>();

/** Returns the declaration of a tool, as the model sees it. Throws a TypeError for a schema that JSON Schema cannot express. */
export function declarationOf(tool: AnyTool): ChatTool {
  const known = declarations.get(tool);
  if (known !== undefined) return known;
  const { name, description, parameters } = tool;
  const declaration: ChatTool = {
    type: 'function',
    function: { name, description, parameters: isZod(parameters) ? jsonSchemaOf(parameters) : { ...parameters } },
  };
  declarations.set(tool, declaration);
  return declaration;
}

function jsonSchemaOf(schema: z.ZodType): Record<string, unknown> {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'input' });
  return rest;
}

/** A module of an operator may have a zod of its own, whose classes are others. */
function isZod(parameters: z.ZodType | JsonSchema): parameters is z.ZodType {
  return 'safeParse' in parameters && typeof parameters.safeParse === 'function';
}
