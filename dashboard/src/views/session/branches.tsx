import type { JSX } from 'preact';
import { linkTo } from '../../route.ts';
import type { SessionCall } from './calls.ts';
import type { LoadedSession } from './load.ts';

const STEP = 34;
const LANE = 34;
const RADIUS = 8;
const LABELS = 150;

/** A call in the picture: its place in the order of calls, and the lane of its branch. */
type Dot = { readonly call: SessionCall; readonly x: number; readonly lane: number };

/**
 * Shows how the calls continue each other; each branch is a lane. A call on a new lane began a conversation, forked a conversation, or has a
 * rewritten context.
 */
export function Branches({ session: { view, calls } }: { session: LoadedSession }): JSX.Element {
  const dots = lanesOf(calls);
  const byId = new Map(dots.map((dot) => [dot.call.record.completion_id, dot]));
  const lanes = Math.max(...dots.map(({ lane }) => lane)) + 1;
  const width = LABELS + calls.length * STEP + RADIUS;
  const height = lanes * LANE + RADIUS;
  const xOf = ({ x }: Dot): number => LABELS + x * STEP + RADIUS;
  const yOf = ({ lane }: Dot): number => lane * LANE + LANE / 2;
  return (
    <>
      <p class="quiet">
        Filled: trained. A dashed line: the prompt was rendered from messages, so its ids may differ from those that
        were sampled. Click a call for its details.
      </p>
      <div class="scroll">
        <svg width={width} height={height}>
          <title>{`${calls.length} calls on ${lanes} branches`}</title>
          {firstOfLanes(dots).map((dot) => (
            <text key={dot.lane} x={0} y={yOf(dot) + 4} class="lane-name">
              {laneName(dot.call)}
            </text>
          ))}
          {dots.map((dot) => {
            const base = byId.get(dot.call.record.prompt.base ?? '');
            if (base === undefined) return null;
            return (
              <path
                key={dot.call.record.completion_id}
                class={`edge ${dot.call.record.link}`}
                d={`M ${xOf(base)} ${yOf(base)} C ${xOf(base) + STEP / 2} ${yOf(base)}, ${xOf(dot) - STEP / 2} ${yOf(dot)}, ${xOf(dot)} ${yOf(dot)}`}
              />
            );
          })}
          {dots.map((dot) => {
            const { record, training } = dot.call;
            const text = `call ${record.index}, ${record.thread}, ${record.link}${record.drift === null ? '' : ` (${record.drift})`}, ${training.trace === null ? `not trained: ${training.why}` : 'trained'}`;
            return (
              <a
                key={record.completion_id}
                href={linkTo(['sessions', view.session_id, 'calls'], { call: String(record.index) })}
                aria-label={text}
              >
                <circle
                  cx={xOf(dot)}
                  cy={yOf(dot)}
                  r={RADIUS}
                  class={training.trace === null ? 'call untrained' : 'call'}
                >
                  <title>{text}</title>
                </circle>
              </a>
            );
          })}
        </svg>
      </div>
    </>
  );
}

/** Gives each branch a lane. A call stays on the lane of the call that it continues, unless an earlier call has already continued that call. */
function lanesOf(calls: readonly SessionCall[]): Dot[] {
  const laneOf = new Map<string, number>();
  const continued = new Set<string>();
  let lanes = 0;
  return calls.map((call, x) => {
    const { completion_id: id, prompt, link, thread } = call.record;
    const base = prompt.base ?? '';
    const baseLane = laneOf.get(base);
    const baseThread = calls.find(({ record }) => record.completion_id === base)?.record.thread;
    const stays = baseLane !== undefined && !continued.has(base) && thread === baseThread && link !== 'root';
    const lane = stays ? baseLane : lanes++;
    laneOf.set(id, lane);
    continued.add(base);
    return { call, x, lane };
  });
}

function firstOfLanes(dots: readonly Dot[]): Dot[] {
  const seen = new Set<number>();
  return dots.filter(({ lane }) => !seen.has(lane) && seen.add(lane));
}

function laneName({ record: { thread, call_kind: kind } }: SessionCall): string {
  const text = kind === 'main' || kind === 'subagent' ? thread : `${thread} (${kind})`;
  return text.length <= 22 ? text : `${text.slice(0, 21)}…`;
}
