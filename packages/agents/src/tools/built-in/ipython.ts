import type { ContentPart } from '@floe-rl/core/schema';
import { outputTexts, type PythonResult, runNotes, TOOL_DESCRIPTIONS, type ToolProcess } from '@floe-rl/sandbox';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { defineTool, type ToolResult } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

const MODULE = /^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*( as [A-Za-z_]\w*)?$/;

const configSchema = z.strictObject({
  timeout_seconds: z.number().gt(0).max(3_600).default(120).describe('time limit of a cell in seconds'),
  preload: z
    .array(z.string().regex(MODULE, 'must be a module, as in `numpy` or `numpy as np`'))
    .max(32)
    .default([])
    .describe('modules that are imported before the first cell, such as `numpy as np`'),
  program: z
    .string()
    .min(1)
    .optional()
    .describe('the interpreter, a path or a name in PATH; default: `python3`, else `python`'),
  images: z
    .boolean()
    .default(true)
    .describe('whether the model gets displayed images; false for a model that reads none, which gets their number'),
});

/** Time in milliseconds that a call may take longer than its cell, to start, to preload and to end Python. */
const MARGIN_MS = 90_000;
const PRELOAD_MS = 60_000;

/** Python in the sandbox that keeps its state. */
export const ipythonToolset = defineToolset({
  name: 'ipython',
  description: 'Python in the sandbox that keeps its state, with images',
  config: configSchema,
  scope: 'session',
  async open({ timeout_seconds: seconds, preload, program, images: showsImages }, { box }) {
    const python = requireBox('ipython', box).python({ program });
    let isPrepared = false;
    const tool = defineTool({
      name: 'ipython',
      description: [TOOL_DESCRIPTIONS.python, ...importsNote(preload)].join(' '),
      effect: 'environment',
      timeoutMs: seconds * 1000 + MARGIN_MS,
      parameters: z.object({ code: z.string() }),
      async run({ code }, _, signal) {
        const missing = isPrepared ? '' : await importAll(python, preload, signal);
        // A process that ends takes its modules with it. One whose end is not known may have ended.
        isPrepared = false;
        const result = await python.run(code, { timeoutMs: seconds * 1000 }, signal);
        isPrepared = result.processEnd === null;
        return resultOf(result, missing, showsImages);
      },
    });
    return { tools: [tool], close: () => python.close() };
  },
});

function importsNote(preload: readonly string[]): string[] {
  return preload.length === 0 ? [] : [`Already imported: ${preload.join(', ')}.`];
}

/** Imports the modules, and resolves with a note on the modules that cannot be imported; empty when there are none. */
async function importAll(
  python: ToolProcess<PythonResult>,
  preload: readonly string[],
  signal: AbortSignal,
): Promise<string> {
  if (preload.length === 0) return '';
  const imports = preload.map((module, index) =>
    [
      'try:',
      `    import ${module}`,
      'except Exception:',
      `    print(${JSON.stringify(preload[index]?.split(' ')[0])})`,
    ].join('\n'),
  );
  const { stdout, processEnd } = await python.run(imports.join('\n'), { timeoutMs: PRELOAD_MS }, signal);
  const missing = stdout.split('\n').filter((line) => preload.some((module) => module.split(' ')[0] === line));
  if (processEnd !== null) return '[the modules could not be imported]';
  return missing.length === 0 ? '' : `[not installed: ${missing.join(', ')}]`;
}

function resultOf(result: PythonResult, missing: string, showsImages: boolean): ToolResult {
  const { result: value, error, images, omitted } = result;
  const notes = [
    ...runNotes(result, 'Python process'),
    ...(omitted > 0 ? [`[${omitted} characters or images are left out]`] : []),
    ...(images.length > 0 && !showsImages ? [`[images that are not shown: ${images.length}]`] : []),
    ...(missing === '' ? [] : [missing]),
  ];
  const values = [value, error].filter((text) => text !== null);
  const text = [...outputTexts(result), ...values, ...notes].join('\n');
  const isError = error !== null || result.timedOut || result.processEnd !== null;
  if (images.length === 0 || !showsImages) return { content: text, isError };
  const parts = images.map((data): ContentPart => {
    return { type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } };
  });
  return { content: [...(text === '' ? [] : [{ type: 'text' as const, text }]), ...parts], isError };
}
