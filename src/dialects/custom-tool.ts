import type { ChatTool } from '../schema/index.ts';
import type { CanonicalRequest } from './dialect.ts';

/** Name of the only argument that a custom tool has in canonical form. */
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

/** Translates a custom tool into a function with one string argument. A grammar is appended to the description. */
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

/** Encodes the input of a custom call as canonical arguments. */
export function customArguments(input: string): string {
  return JSON.stringify({ [INPUT]: input });
}

/**
 * Decodes the input of a custom call from canonical arguments. Arguments of any other shape are returned unchanged, so that the client
 * sees what was sampled.
 */
export function customInput(text: string): string {
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === 'object' && parsed !== null && INPUT in parsed && typeof parsed[INPUT] === 'string') {
      return parsed[INPUT];
    }
  } catch {
    // The text is not JSON and is returned unchanged.
  }
  return text;
}

/** Whether the client declared the tool with this name as a tool of type `custom`. */
export function isCustomTool(name: string, request: CanonicalRequest): boolean {
  return request.toolForms.get(name)?.kind === 'custom';
}
