import { outputTexts, runNotes, TOOL_DESCRIPTIONS } from '@floe-rl/sandbox';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { defineTool } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

const configSchema = z.strictObject({
  timeout_seconds: z.number().gt(0).max(3_600).default(120).describe('default time limit of a command in seconds'),
});

/** Time in milliseconds that a call may take longer than its command, to start and end the shell. */
const MARGIN_MS = 30_000;

/** A shell in the sandbox that keeps its state. */
export const bashToolset = defineToolset({
  name: 'bash',
  description: 'a shell in the sandbox that keeps its state',
  config: configSchema,
  scope: 'session',
  async open({ timeout_seconds: seconds }, { box }) {
    const shell = requireBox('bash', box).shell();
    const tool = defineTool({
      name: 'bash',
      description: TOOL_DESCRIPTIONS.bash,
      effect: 'environment',
      timeoutMs: seconds * 1000 + MARGIN_MS,
      parameters: z.object({ command: z.string() }),
      async run({ command }, _, signal) {
        const result = await shell.run(command, { timeoutMs: seconds * 1000 }, signal);
        const exit = result.signal ?? result.exitCode;
        const status = exit === 0 ? [] : [`[exit code: ${exit}]`];
        return {
          content: [...outputTexts(result), ...runNotes(result, 'shell'), ...status].join('\n'),
          isError: exit !== 0 || result.timedOut,
        };
      },
    });
    return { tools: [tool], close: () => shell.close() };
  },
});
