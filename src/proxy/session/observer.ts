import type { ErrorCode } from '../../core/errors.ts';
import type { DialectName } from '../../schema/index.ts';

/** A model call that has ended, or was refused before it began. Milliseconds. */
export type EndedCall = {
  readonly dialect: DialectName;
  /** Null: no engine answered. */
  readonly engineId: string | null;
  readonly code: 'ok' | ErrorCode;
  /** From when its request was read to when its reply could leave. */
  readonly totalMs: number;
  /** Of {@link totalMs}, what the engine took for its answer; null: it gave none. */
  readonly engineMs: number | null;
};

/** Hears of every model call once, however many requests joined it. Must not throw, and must be quick: replies wait for it. */
export type CallObserver = (call: EndedCall) => void;
