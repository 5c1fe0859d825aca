import { type DeliveredResult, deliveryLength } from '../../client/node-api.ts';
import { RESULT_LIMIT_BYTES } from '../../core/envelope.ts';
import { asFloeError } from '../../core/errors.ts';
import { type Collected, collect } from '../../runtimes/collect.ts';
import type { Runtime } from '../../runtimes/runtime.ts';
import type { ArtifactsReport } from '../../schema/index.ts';
import type { Attempt } from './attempt.ts';

const MIB = 1024 * 1024;
/** Packs some hundred MiB. It is a POSTRUN worker that an agent can keep busy for as long, with a tree made for it. */
const COLLECT_SECONDS = 20;

/**
 * What the agent left behind, as its task asks, in a time of its own; null when that is nothing. A failure is a reason why
 * there is no archive, never one of the session; never rejects.
 */
export async function collectArtifacts(attempt: Attempt, runtime: Runtime | null): Promise<Collected | null> {
  const { collect: wanted, max_mb: maxMb, paths } = attempt.lease.task.artifacts;
  if (!wanted || runtime === null) return null;
  const timer = attempt.newTimer(COLLECT_SECONDS * 1000);
  try {
    return await timer.run('artifacts', null, attempt.signal, (signal) =>
      collect(runtime, { maxBytes: Math.floor(maxMb * MIB), paths }, signal),
    );
  } catch (thrown) {
    const error = asFloeError(thrown);
    const late = error.code === 'deadline_exceeded';
    return { archive: null, omitted: late ? `packing took longer than ${COLLECT_SECONDS} s` : error.message };
  }
}

export function artifactsReport(collected: Collected | null): ArtifactsReport | null {
  return collected === null ? null : { bytes: collected.archive?.length ?? 0, omitted: collected.omitted };
}

/** The result as it is, or without its artifacts when no server would take it with them. */
export function deliverable(result: DeliveredResult, limitBytes = RESULT_LIMIT_BYTES): DeliveredResult {
  if (result.artifacts === null || deliveryLength(result) <= limitBytes) return result;
  const omitted = `with the archive of ${result.artifacts.length} bytes the result is larger than ${limitBytes} bytes`;
  return { ...result, artifacts: null, summary: { ...result.summary, artifacts: { bytes: 0, omitted } } };
}
