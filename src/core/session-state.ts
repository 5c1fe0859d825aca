import type { SessionStatus, TerminalStatus } from '../schema/index.ts';
import { FloeError } from './errors.ts';

const TERMINAL: readonly SessionStatus[] = ['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'];

/**
 * Legal moves of a session. Every live state may go back to QUEUED (its lease ran out, or the infrastructure failed and
 * a new attempt follows) and may end; a terminal state never moves again.
 */
const MOVES: Readonly<Record<SessionStatus, readonly SessionStatus[]>> = {
  QUEUED: ['LEASED', 'CANCELLED', 'ERROR'],
  LEASED: ['INIT', 'POSTRUN', 'QUEUED', ...TERMINAL],
  INIT: ['READY', 'POSTRUN', 'QUEUED', ...TERMINAL],
  READY: ['RUNNING', 'POSTRUN', 'QUEUED', ...TERMINAL],
  RUNNING: ['POSTRUN', 'QUEUED', ...TERMINAL],
  POSTRUN: ['QUEUED', ...TERMINAL],
  COMPLETED: [],
  ERROR: [],
  TIMEOUT: [],
  CANCELLED: [],
};

export function isTerminal(status: SessionStatus): status is TerminalStatus {
  return TERMINAL.includes(status);
}

export function canMove(from: SessionStatus, to: SessionStatus): boolean {
  return MOVES[from].includes(to);
}

/** Returns `to`, or throws `internal`: an illegal move is a defect, never input. */
export function move(from: SessionStatus, to: SessionStatus): SessionStatus {
  if (!canMove(from, to)) throw new FloeError('internal', `a session cannot move from ${from} to ${to}`);
  return to;
}
