import { line, paint } from './print.ts';

/** One thing that was looked at. `remedy`: what to do, one line; null when there is nothing to do. */
export type Finding = {
  readonly part: string;
  readonly ok: boolean;
  readonly text: string;
  readonly remedy: string | null;
};

/** As wide as the longest part, so that the texts stand below each other. */
const PART_COLUMNS = 22;

export function found(part: string, text: string): Finding {
  return { part, ok: true, text, remedy: null };
}

export function lacking(part: string, text: string, remedy: string | null): Finding {
  return { part, ok: false, text, remedy };
}

export function printFinding({ part, ok, text, remedy }: Finding): void {
  line(`${ok ? paint('green', 'ok  ') : paint('red', 'lack')}  ${part.padEnd(PART_COLUMNS)} ${text}`);
  if (remedy !== null) line(`      ${' '.repeat(PART_COLUMNS)} → ${remedy}`);
}
