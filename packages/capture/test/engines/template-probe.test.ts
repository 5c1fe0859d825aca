import { FloeError } from '@floe-rl/core';
import { bundledVocabulary, type TemplateMode } from '@floe-rl/sim';
import { describe, expect, it } from 'vitest';
import { probeTemplate, type TemplateRenderer } from '../../src/engines/template-probe.ts';
import { renderIds } from '../proxy/template-pool.ts';

const { imEnd, toolCallClose } = bundledVocabulary().special;

const rendererOf =
  (mode: TemplateMode): TemplateRenderer =>
  async (texts, { toolsText, generationPrompt }) =>
    renderIds(texts, toolsText, generationPrompt, mode);

type Turn = { content: string | null; tool_calls?: { function: { name: string; arguments: string } }[] };

describe('probeTemplate', () => {
  it.each<[TemplateMode, 'kept' | 'dropped']>([
    ['append_only', 'kept'],
    ['strip_thinking', 'dropped'],
    ['open_think', 'dropped'],
  ])('finds the close of %s, whether a short history suffices, and what happens to thinking', async (mode, atUser) => {
    let renders = 0;
    const facts = await probeTemplate(async (texts, options) => {
      renders++;
      return await rendererOf(mode)(texts, options);
    });
    expect(facts).toEqual({
      close_ids: [imEnd],
      call_end: {
        ids: ['}', '}\n</tool_call>'].flatMap((text) => bundledVocabulary().encode(text)),
        each: toolCallClose,
      },
      tail_render: true,
      thinking: { tool_results: 'kept', user_message: atUser },
      fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/),
    });
    expect(renders).toBeLessThanOrEqual(14);
  });

  it('returns the same fingerprint for one template, and different ones for different templates', async () => {
    const prints = await Promise.all(
      (['append_only', 'strip_thinking', 'strip_thinking', 'open_think'] as const).map(
        async (mode) => (await probeTemplate(rendererOf(mode))).fingerprint,
      ),
    );
    expect(new Set(prints).size).toBe(3);
    expect(prints[1]).toBe(prints[2]);
  });

  it('ignores the first turn in the fingerprint, which may contain the date', async () => {
    const dated =
      (day: number): TemplateRenderer =>
      async (texts, options) =>
        Int32Array.of(1_000 + day, imEnd, ...(await rendererOf('append_only')(texts, options)));
    const [one, two] = await Promise.all([1, 2].map((day) => probeTemplate(dated(day))));
    expect(one?.fingerprint).toBe(two?.fingerprint);
  });

  it('leaves facts unknown when the template refuses a conversation', async () => {
    const refusing: TemplateRenderer = async (texts, options) => {
      if (texts.some((text) => text.includes('tool_calls'))) throw new FloeError('engine_rejected', 'no calls');
      return await rendererOf('append_only')(texts, options);
    };
    expect(await probeTemplate(refusing)).toMatchObject({
      close_ids: [imEnd],
      tail_render: false,
      thinking: { tool_results: 'unknown', user_message: 'kept' },
    });
    const facts = await probeTemplate(() => Promise.reject(new FloeError('engine_rejected', 'no')));
    expect(facts).toMatchObject({ close_ids: [], tail_render: false, fingerprint: null });
  });

  it('finds no close that text may contain, and none when turns are not closed', async () => {
    const newline = bundledVocabulary().encode('\n')[0] as number;
    const without: TemplateRenderer = async (texts, options) =>
      (await rendererOf('append_only')(texts, options)).map((id) => (id === imEnd ? newline : id));
    expect((await probeTemplate(without)).close_ids).toEqual([]);
  });

  it('finds only the close of text turns when nothing closes a turn of tool calls', async () => {
    const close = 1_000;
    const linesOf = ({ name, arguments: args }: { name: string; arguments: string }): string =>
      [name, ...Object.keys(JSON.parse(args) as object)].map((line) => `${line}\n`).join('');
    const unclosed: TemplateRenderer = async (texts) => {
      const turns = texts.map((text) => JSON.parse(text) as Turn);
      return Int32Array.from(
        turns.flatMap(({ content, tool_calls: calls }) =>
          calls === undefined
            ? [...Buffer.from(content ?? ''), close]
            : [...Buffer.from(calls.map((call) => linesOf(call.function)).join(''))],
        ),
      );
    };
    expect((await probeTemplate(unclosed)).close_ids).toEqual([close]);
  });

  it('detects that messages depend on earlier turns', async () => {
    const counting: TemplateRenderer = async (texts, options) =>
      Int32Array.of(
        ...(await rendererOf('append_only')(texts, options)),
        ...(options.generationPrompt ? [texts.length] : []),
      );
    expect((await probeTemplate(counting)).tail_render).toBe(false);
  });

  it('detects that messages depend on the system message', async () => {
    const repeating: TemplateRenderer = async (texts, options) => {
      const ids = await rendererOf('append_only')(texts, options);
      return texts[0]?.includes('"system"') === true && options.generationPrompt ? Int32Array.of(...ids, 7) : ids;
    };
    expect((await probeTemplate(repeating)).tail_render).toBe(false);
  });

  it('rejects when the engine does not answer', async () => {
    const failed = probeTemplate(() => Promise.reject(new FloeError('engine_unavailable', 'gone')));
    await expect(failed).rejects.toMatchObject({ code: 'engine_unavailable' });
  });
});
