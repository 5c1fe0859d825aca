import { z } from 'zod';
import { defineHarness } from './define.ts';
import { mailboxClients } from './mailbox-clients.ts';
import { exitFailure } from './report.ts';

const settingsSchema = z.strictObject({
  mailbox: z
    .boolean()
    .default(false)
    .describe(
      'whether the command calls its model through files in the directory `$FLOE_MAILBOX` instead of over HTTP',
    ),
});

/**
 * Adapter that runs any shell command as an agent: `/bin/sh -c` runs the command in `agent.custom_shell`. The command receives the
 * instruction on stdin and in the file `$FLOE_INSTRUCTION_FILE`, and calls its model at `$FLOE_BASE_URL` in any dialect.
 */
export const shellHarness = defineHarness({
  name: 'shell',
  dialects: ['openai_chat', 'openai_responses', 'anthropic', 'gemini'],
  features: ['custom_shell'],
  install: null,
  settings: settingsSchema,
  launch({ agent, instruction, paths, settings }) {
    const mailbox = `${paths.home}/.floe/mailbox`;
    const instructionFile = `${paths.home}/.floe/instruction.txt`;
    return {
      files: [{ path: instructionFile, content: instruction }, ...(settings.mailbox ? mailboxClients(mailbox) : [])],
      env: { FLOE_INSTRUCTION_FILE: instructionFile, ...(settings.mailbox ? { FLOE_MAILBOX: mailbox } : {}) },
      ...(settings.mailbox ? { mailbox } : {}),
      command: agent.custom_shell ?? '',
      stdin: instruction,
    };
  },
  judge: (report) => exitFailure('the command', report) ?? { ok: true },
});
