import { asFloeError, ERROR_TABLE, type ErrorCode, FloeError } from '../errors.ts';
import { isRecord } from '../record.ts';

/** A FloeError in the form in which it is sent to another process or thread. */
export type ErrorMessage = { readonly code: ErrorCode; readonly message: string; readonly details: object };

/** Converts errors to values that can be sent to another process or thread, and back. */
export type ErrorCodec = {
  encode(thrown: unknown): unknown;
  /** Must not throw, whatever the peer has sent. */
  decode(message: unknown): Error;
};

/** Sends every error as a FloeError. Details that are no JSON are left out. */
export const floeErrors = {
  encode(thrown: unknown): ErrorMessage {
    const { code, message, details } = asFloeError(thrown);
    return { code, message, details: jsonOf(details) };
  },
  decode(message: unknown): FloeError {
    if (!isRecord(message) || typeof message.message !== 'string' || !isErrorCode(message.code)) {
      return new FloeError('internal', 'another process or thread of floe failed, with an error that cannot be read');
    }
    return new FloeError(message.code, message.message, isRecord(message.details) ? { ...message.details } : {});
  },
} satisfies ErrorCodec;

function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && Object.hasOwn(ERROR_TABLE, code);
}

function jsonOf(details: object): object {
  try {
    return JSON.parse(JSON.stringify(details)) as object;
  } catch {
    return {};
  }
}
