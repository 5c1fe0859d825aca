import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findGenerationPrompt } from '../../../src/engines/sglang/renderer.ts';

type Message = { role: string; content: string; reasoning_content?: string; tool_calls?: unknown[] };

/** A chat template for tests. Token ids from 1,000 on are text; all other ids belong to the template. */
type Template = {
  start: number[];
  /** The token ids at the beginning of every turn, in front of its role. */
  open: number[];
  headEnd: number[];
  close: number[];
  /** The last token ids of the generation prompt, which follow the header of the assistant's turn. */
  promptEnd: number[];
  /** Whether a last turn without thinking is rendered with an empty thinking block. */
  emptyThinking: boolean;
  refusesSystem: boolean;
  preamble: boolean;
};

const ROLES: Readonly<Record<string, number>> = { system: 50, user: 51, assistant: 52, tool: 53 };
const textIds = (text: string): number[] => Array.from(text, (letter) => 1_000 + (letter.codePointAt(0) ?? 0));

function generationPrompt(template: Template): number[] {
  return [...template.open, ROLES.assistant as number, ...template.headEnd, ...template.promptEnd];
}

function render(template: Template, texts: readonly string[], tools: string): Int32Array | null {
  const messages = texts.map((text) => JSON.parse(text) as Message);
  if (template.refusesSystem && messages[0]?.role === 'system') return null;
  const turn = (role: string, body: number[]): number[] => [
    ...template.open,
    ROLES[role] as number,
    ...template.headEnd,
    ...body,
    ...template.close,
  ];
  const ids = [...template.start];
  const explicit = messages[0]?.role === 'system';
  if (!explicit && template.preamble) ids.push(...turn('system', textIds('help')));
  if (tools !== '[]') ids.push(...turn('system', textIds(tools)));
  for (const [index, { role, content, reasoning_content, tool_calls }] of messages.entries()) {
    const thinking = [60, ...textIds(reasoning_content ?? ''), 61];
    const shown =
      role === 'assistant' &&
      (reasoning_content !== undefined || (template.emptyThinking && index === messages.length - 1));
    const calls = tool_calls === undefined ? [] : textIds(JSON.stringify(tool_calls));
    ids.push(...turn(role, [...(shown ? thinking : []), ...textIds(content), ...calls]));
  }
  return Int32Array.from([...ids, ...generationPrompt(template)]);
}

const special = (from: number, max: number) =>
  fc.uniqueArray(fc.integer({ min: from, max: from + 9 }), { maxLength: max });

const templates: fc.Arbitrary<Template> = fc.record({
  start: special(10, 2),
  open: special(20, 2),
  headEnd: special(30, 2),
  close: special(40, 2).filter((ids) => ids.length > 0),
  promptEnd: fc.constantFrom([], [60], [60, 70], [60, 70, 61]),
  emptyThinking: fc.boolean(),
  refusesSystem: fc.boolean(),
  preamble: fc.boolean(),
});

describe('findGenerationPrompt', () => {
  it('finds the generation prompt or returns null, but never returns other ids', async () => {
    let actual = 0;
    await fc.assert(
      fc.asyncProperty(templates, async (template) => {
        const learned = await findGenerationPrompt(async (texts, tools) => render(template, texts, tools));
        if (learned === null) return;
        actual++;
        expect([...learned]).toEqual(generationPrompt(template));
      }),
      { numRuns: 500 },
    );
    expect(actual).toBeGreaterThan(400);
  });

  it('returns null when the renderings do not match', async () => {
    let calls = 0;
    expect(await findGenerationPrompt(async () => Int32Array.from([++calls, 5, 6]))).toBeNull();
    expect(await findGenerationPrompt(async () => null)).toBeNull();
  });
});
