import { type FloeError, MIB } from '@floe-rl/core';
import type { ResultWithSummary } from '../../store/index.ts';
import type { TrajectoryReader } from './trajectory-reader.ts';

/**
 * Maximum number of trajectories of one reply that are being read or wait to be sent. A read takes several steps. Each step waits until the
 * store has written the results that arrive at the same time. One read after the other would take minutes on a busy server.
 */
const MAX_AHEAD = 64;
/** No further trajectory is read ahead once the trajectories that were read ahead have this many bytes together. */
const MAX_AHEAD_BYTES = 8 * MIB;

type Row = Pick<ResultWithSummary, 'session_id' | 'cursor' | 'trajectory_ref' | 'trajectory_bytes'>;

/** A trajectory as {@link TrajectoryReader.read} returns it. */
type Trajectory = Buffer | FloeError | null;

/** Yields each row with its trajectory, in the order of the rows. Reads the trajectories of the next rows meanwhile. */
export async function* withTrajectories<R extends Row>(
  rows: Iterable<R> | AsyncIterable<R>,
  reader: TrajectoryReader,
): AsyncGenerator<readonly [row: R, trajectory: Trajectory]> {
  const ahead: { readonly row: R; readonly trajectory: Promise<Trajectory> }[] = [];
  let bytes = 0;
  const source = Symbol.asyncIterator in rows ? rows[Symbol.asyncIterator]() : rows[Symbol.iterator]();
  let isEnd = false;
  try {
    for (;;) {
      while (!isEnd && ahead.length < MAX_AHEAD && bytes < MAX_AHEAD_BYTES) {
        const next = await source.next();
        if (next.done) isEnd = true;
        else {
          const trajectory = reader.read(next.value);
          // A failed read is reported when it is the row's turn. When the reply ends before that, the failure is ignored.
          trajectory.catch(() => {});
          ahead.push({ row: next.value, trajectory });
          bytes += next.value.trajectory_bytes;
        }
      }
      const first = ahead.shift();
      if (first === undefined) return;
      yield [first.row, await first.trajectory];
      bytes -= first.row.trajectory_bytes;
    }
  } finally {
    await source.return?.();
  }
}
