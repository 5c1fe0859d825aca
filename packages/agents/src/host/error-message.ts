import { asFloeError, FloeError } from '@floe-rl/core';
import { ToolError } from '@floe-rl/sandbox';
import type { ErrorMessage } from './protocol.ts';

/** Returns an error in the form in which it crosses between processes. Details that cannot be sent are left out. */
export function errorMessage(thrown: unknown): ErrorMessage {
  if (thrown instanceof ToolError) return { type: 'tool', reason: thrown.reason, message: thrown.message };
  const { code, message, details } = asFloeError(thrown);
  return { type: 'floe', code, message, details: sendable(details) };
}

export function errorOf(message: ErrorMessage): Error {
  if (message.type === 'tool') return new ToolError(message.reason, message.message);
  return new FloeError(message.code, message.message, { ...message.details });
}

function sendable(details: object): object {
  try {
    return JSON.parse(JSON.stringify(details)) as object;
  } catch {
    return {};
  }
}
