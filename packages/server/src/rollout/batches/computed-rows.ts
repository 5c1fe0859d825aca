import { episodeRow } from '@floe-rl/core/rows';
import type { BatchStreamRequest } from '@floe-rl/core/schema';
import type { RowFields } from './task-template.ts';

type RowSource = BatchStreamRequest['source'];

/** Whether a source is endless. The rows of an endless source are computed and not stored. */
export function isEndless(source: RowSource): boolean {
  return source.kind === 'endless' || (source.kind === 'environments' && source.episodes === null);
}

/** Returns the fields of a row of an endless source; `null` for a source whose rows are stored. */
export function computedRow(source: RowSource, rowIndex: number): RowFields | null {
  if (!isEndless(source)) return null;
  return source.kind === 'environments' ? episodeRow(source, rowIndex) : { index: rowIndex };
}
