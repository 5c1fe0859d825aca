import { z } from 'zod';
import { defineHarness } from './define.ts';
import { failedExit } from './report.ts';

const settingsSchema = z.strictObject({});

/**
 * Any command as an agent: `agent.custom_shell`, run by `/bin/sh -c`. It gets the instruction on stdin and in
 * `$FLOE_INSTRUCTION_FILE`, and finds its model at `$FLOE_BASE_URL` in whichever dialect it speaks.
 */
export const shellHarness = defineHarness({
  name: 'shell',
  dialects: ['openai_chat', 'openai_responses', 'anthropic', 'gemini'],
  features: ['custom_shell'],
  install: null,
  settings: settingsSchema,
  launch({ agent, instruction, paths }) {
    const instructionFile = `${paths.home}/.floe/instruction.txt`;
    return {
      files: [{ path: instructionFile, content: instruction }],
      env: { FLOE_INSTRUCTION_FILE: instructionFile },
      command: agent.custom_shell ?? '',
      stdin: instruction,
    };
  },
  judge: (report) => failedExit('the command', report) ?? { ok: true },
});
