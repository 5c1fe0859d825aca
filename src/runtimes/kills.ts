import { FloeError } from '../core/errors.ts';
import type { ExecResult, StartRequest } from './runtime.ts';

/** Tells why a command of the sandbox was ended before its time, if it was. To be called when it has ended. */
export function tellKill({ onKill }: StartRequest, killedBy: ExecResult['killedBy'], signal: AbortSignal): void {
  if (killedBy !== null) onKill?.(killedBy);
  else if (signal.aborted) onKill?.(isDeadline(signal.reason) ? 'deadline' : 'stopped');
}

function isDeadline(reason: unknown): boolean {
  return FloeError.is(reason) && reason.code === 'deadline_exceeded';
}
