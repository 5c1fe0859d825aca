import type { JSX } from 'preact';
import { duration } from '../../format.ts';
import { linkTo } from '../../route.ts';
import type { LoadedSession } from './load.ts';

/** The stages of a session with the field of their duration, in order. */
const STAGES = [
  ['queued', 'queued_ms'],
  ['INIT', 'init_ms'],
  ['READY', 'ready_ms'],
  ['RUNNING', 'running_ms'],
  ['waits for POSTRUN', 'postrun_queue_ms'],
  ['POSTRUN', 'postrun_ms'],
] as const;

type Bar = {
  readonly name: string;
  readonly fromMs: number;
  readonly ms: number;
  readonly kind: string;
  readonly href?: string;
};

/** The times of a session: its stages, and the calls within the run. */
export function Timing({ session: { view, calls } }: { session: LoadedSession }): JSX.Element {
  const timing = view.summary?.timing;
  if (timing === undefined) return <p class="quiet">The times are known when the session has ended.</p>;
  const bars: Bar[] = [];
  let atMs = 0;
  let runAtMs = 0;
  for (const [name, field] of STAGES) {
    const ms = timing[field];
    if (ms === null) continue;
    if (field === 'running_ms') runAtMs = atMs;
    bars.push({ name, fromMs: atMs, ms, kind: field === 'queued_ms' || field === 'ready_ms' ? 'waiting' : 'stage' });
    atMs += ms;
  }
  const firstMs = Math.min(...calls.map(({ record }) => Date.parse(record.timestamp)));
  const ofModel = calls.reduce((sum, { record }) => sum + record.timings.engine_ms, 0);
  for (const { record } of calls) {
    const fromMs = runAtMs + Date.parse(record.timestamp) - firstMs;
    const href = linkTo(['sessions', view.session_id, 'calls'], { call: String(record.index) });
    bars.push({ name: `call ${record.index}`, fromMs, ms: record.timings.total_ms, kind: 'model', href });
  }
  const wholeMs = Math.max(1, atMs, ...bars.map(({ fromMs, ms }) => fromMs + ms));
  return (
    <>
      <p>
        {duration(ofModel)} of {duration(timing.running_ms)} in RUNNING are the engine’s. The first call is drawn at the
        beginning of RUNNING.
      </p>
      <table class="lanes">
        <tbody>
          {bars.map((bar) => (
            <tr key={`${bar.name} ${bar.fromMs}`}>
              <th scope="row">{bar.href === undefined ? bar.name : <a href={bar.href}>{bar.name}</a>}</th>
              <td class="track">
                <span
                  class={`bar ${bar.kind}`}
                  style={{
                    left: `${(100 * bar.fromMs) / wholeMs}%`,
                    width: `${Math.max(0.2, (100 * bar.ms) / wholeMs)}%`,
                  }}
                />
              </td>
              <td>{duration(bar.ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}
