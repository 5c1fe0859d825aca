import type { ChatTool } from '../schema/index.ts';
import type { ForeignTool } from './openai_chat/schema.ts';

/** The one argument of a custom tool in canonical form. */
const INPUT = 'input';

/** A custom tool, whose input is free text, as a function with that text as its argument. A grammar is told in words. */
export function customFunction({ name, description, format }: NonNullable<ForeignTool['custom']>): ChatTool {
  const grammar = format?.grammar;
  const rule = grammar ? `The input follows this ${grammar.syntax} grammar:\n${grammar.definition}` : '';
  const told = [description ?? '', rule].filter((text) => text !== '').join('\n\n');
  return {
    type: 'function',
    function: {
      name,
      ...(told === '' ? {} : { description: told }),
      parameters: { type: 'object', properties: { [INPUT]: { type: 'string' } }, required: [INPUT] },
    },
  };
}

/** A custom call's input as canonical arguments. */
export function customArguments(input: string): string {
  return JSON.stringify({ [INPUT]: input });
}

/** The input in canonical arguments; arguments of another shape are the input themselves, so that nothing is hidden. */
export function customInput(text: string): string {
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === 'object' && parsed !== null && INPUT in parsed && typeof parsed[INPUT] === 'string') {
      return parsed[INPUT];
    }
  } catch {
    // Not JSON: given as it is.
  }
  return text;
}
