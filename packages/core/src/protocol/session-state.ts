import { FloeError } from '../errors.ts';
import type { SessionStatus, TerminalStatus } from '../schema/index.ts';

const TERMINAL: readonly SessionStatus[] = ['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'];

/**
 * The legal transitions of a session, listed by the state that the session leaves. Every state that is not terminal may end, or return to
 * QUEUED because the lease expired or the infrastructure failed and a new attempt follows. A terminal state is final.
 */
const TRANSITIONS: Readonly<Record<SessionStatus, readonly SessionStatus[]>> = {
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

export function canTransition(from: SessionStatus, to: SessionStatus): boolean {
  return TRANSITIONS[from].includes(to);
}

/** Returns `to`. Throws `internal` when the transition is illegal, which is always a defect of floe and never caused by input. */
export function transition(from: SessionStatus, to: SessionStatus): SessionStatus {
  if (!canTransition(from, to)) throw new FloeError('internal', `a session cannot move from ${from} to ${to}`);
  return to;
}
