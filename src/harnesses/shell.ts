import { z } from 'zod';
import { FloeError } from '../core/errors.ts';
import { parseAs } from '../core/parse.ts';
import type { AgentSpec } from '../schema/index.ts';
import type { HarnessAdapter, HarnessReport, HarnessVerdict, Launch, LaunchContext } from './harness.ts';

/** Enough of the error output to see what went wrong. */
const STDERR_CHARS = 500;

const settingsSchema = z.strictObject({});

/**
 * Any command as an agent: `agent.custom_shell`, run by `/bin/sh -c`. It gets the instruction on stdin and in
 * `$FLOE_INSTRUCTION_FILE`, and finds its model at `$FLOE_BASE_URL` in whichever dialect it speaks.
 */
export const shellHarness: HarnessAdapter = {
  name: 'shell',
  dialects: ['openai_chat', 'anthropic'],
  install: null,
  checkAgent: (agent) => void commandOf(agent),
  launch,
  judge,
};

function launch({ agent, instruction, paths }: LaunchContext): Launch {
  const command = commandOf(agent);
  const instructionFile = `${paths.home}/.floe/instruction.txt`;
  return {
    files: [{ path: instructionFile, content: instruction }],
    env: { FLOE_INSTRUCTION_FILE: instructionFile },
    command,
    stdin: instruction,
  };
}

function commandOf(agent: AgentSpec): string {
  parseAs(settingsSchema, agent.settings, 'agent.settings', 'agent.settings');
  const command = agent.custom_shell;
  if (command !== undefined && command.trim() !== '') return command;
  throw new FloeError('schema_violation', 'agent.custom_shell: the shell harness needs a command to run', {
    issues: [{ path: 'agent.custom_shell', message: 'is required by the shell harness' }],
  });
}

function judge({ exitCode, stderr }: HarnessReport): HarnessVerdict {
  if (exitCode === 0) return { ok: true };
  const how = exitCode === null ? 'the command was ended by a signal' : `the command exited with ${exitCode}`;
  const tail = stderr.trim().slice(-STDERR_CHARS);
  return { ok: false, message: tail === '' ? how : `${how}: ${tail}` };
}
