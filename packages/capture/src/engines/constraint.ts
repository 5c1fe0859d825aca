import type { ConstraintKind } from '@floe-rl/core/schema';
import type { GenerateRequest } from './engine.ts';

/** The fields of a request that can restrict the tokens of its reply. */
type ConstrainingFields = Pick<GenerateRequest, 'tools' | 'toolChoice' | 'responseFormat'>;

/** Whether the request forces the model to call a tool: any of its tools, or a tool that the request names. */
export function forcesCall({ tools, toolChoice }: Pick<ConstrainingFields, 'tools' | 'toolChoice'>): boolean {
  return tools.length > 0 && toolChoice !== null && toolChoice !== 'auto' && toolChoice !== 'none';
}

/**
 * Returns the kind of constraint that a request puts on the tokens of its reply; `null` when nothing does. Engines let a forced tool call
 * take precedence over a response format.
 */
export function constraintKindOf(request: ConstrainingFields): ConstraintKind | null {
  if (forcesCall(request)) return 'tool_choice';
  return request.responseFormat === null ? null : 'response_format';
}
