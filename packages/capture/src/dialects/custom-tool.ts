import type { ChatTool } from '@floe-rl/core/schema';
import type { CanonicalRequest } from './dialect.ts';

/** Name of the only argument of the function that replaces a tool of type `custom` in floe's internal form. */
const INPUT = 'input';

/** A tool of type `custom` as Chat Completions declares it. Its input is free text instead of JSON arguments. */
type CustomTool = {
  readonly name: string;
  readonly description?: string | null | undefined;
  readonly format?:
    | {
        readonly type: string;
        readonly grammar?: { readonly syntax: string; readonly definition: string } | null | undefined;
      }
    | null
    | undefined;
};

/**
 * Translates a custom tool into a function with one string argument. If the tool restricts its input by a grammar, the grammar is appended
 * to the description.
 */
export function customFunction({ name, description, format }: CustomTool): ChatTool {
  const grammar = format?.grammar;
  const rule = grammar ? `The input follows this ${grammar.syntax} grammar:\n${grammar.definition}` : '';
  const fullDescription = [description ?? '', rule].filter((text) => text !== '').join('\n\n');
  return {
    type: 'function',
    function: {
      name,
      ...(fullDescription === '' ? {} : { description: fullDescription }),
      parameters: { type: 'object', properties: { [INPUT]: { type: 'string' } }, required: [INPUT] },
    },
  };
}

/** Encodes the free-text input of a call to a custom tool as the JSON arguments of a function call. */
export function customArguments(input: string): string {
  return JSON.stringify({ [INPUT]: input });
}

/**
 * Extracts the free-text input of a call to a custom tool from its JSON arguments. Arguments of any other shape are returned unchanged, so
 * that the client receives what was sampled.
 */
export function customInput(text: string): string {
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === 'object' && parsed !== null && INPUT in parsed && typeof parsed[INPUT] === 'string') {
      return parsed[INPUT];
    }
  } catch {
    // Arguments that are not JSON are returned unchanged.
  }
  return text;
}

/** Whether the client declared the tool with this name as a tool of type `custom`. */
export function isCustomTool(name: string, request: CanonicalRequest): boolean {
  return request.toolForms.get(name)?.kind === 'custom';
}
