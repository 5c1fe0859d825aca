import type { SessionView } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { Badge, Loaded, toneOf } from '../components/parts.tsx';
import { rewardText } from '../format.ts';
import { useQuery } from '../query.ts';
import { linkTo } from '../route.ts';
import type { SessionCall } from './session/calls.ts';
import { type LoadedSession, loadSession } from './session/load.ts';
import { Text } from './session/transcript.tsx';

/** Maximum number of samples that are compared, because each is a column. */
const MAX_SAMPLES = 4;
/** Thread of the agent that has the task. */
const MAIN = 'main';

/** The samples of a group side by side, turn by turn, from the first turn in which they differ. */
export function Compare({ taskId }: { taskId: string }): JSX.Element {
  const samples = useQuery(`compare ${taskId}`, async (aborted) => {
    const path = `tasks/${encodeURIComponent(taskId)}/sessions`;
    const { sessions } = await getJson<{ sessions: readonly SessionView[] }>(path, aborted);
    const ended = sessions.filter(({ summary }) => summary !== null && summary.completion_count > 0);
    return Promise.all(ended.slice(0, MAX_SAMPLES).map(({ session_id }) => loadSession(session_id, aborted)));
  });
  return (
    <>
      <h1>
        Samples of <a href={linkTo(['tasks', taskId])}>{taskId}</a>
      </h1>
      <Loaded of={samples}>{(data) => <SideBySide samples={data} />}</Loaded>
    </>
  );
}

function SideBySide({ samples }: { samples: readonly LoadedSession[] }): JSX.Element {
  if (samples.length < 2) return <p class="quiet">Fewer than two samples have ended with a model call.</p>;
  const turns = samples.map(({ calls }) => calls.filter(({ record }) => record.thread === MAIN));
  const longest = Math.max(...turns.map(({ length }) => length));
  const first = firstDifference(turns, longest);
  return (
    <>
      <p>
        {first === null
          ? 'All samples have the same replies.'
          : `The samples differ from turn ${first} on. Turns before it are the same and shown once.`}
      </p>
      <table class="compare">
        <thead>
          <tr>
            <th scope="col">Turn</th>
            {samples.map(({ view }) => (
              <th scope="col" key={view.session_id}>
                <a href={linkTo(['sessions', view.session_id])}>sample {view.sample_index}</a>{' '}
                <Badge tone={toneOf(view.summary?.outcome ?? '')}>{view.summary?.outcome}</Badge> reward{' '}
                {rewardText(view.summary?.reward ?? null)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: longest }, (_, turn) => (
            <tr key={`${turn}`} class={turn === first ? 'differs' : ''}>
              <th scope="row">{turn}</th>
              {first === null || turn < first ? (
                <td colSpan={samples.length}>
                  <Reply call={turns[0]?.[turn]} />
                </td>
              ) : (
                turns.map((calls, sample) => (
                  <td key={samples[sample]?.view.session_id}>
                    <Reply call={calls[turn]} />
                  </td>
                ))
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

/** Returns the first turn in which the replies differ; `null` when there is none. */
function firstDifference(turns: readonly (readonly SessionCall[])[], longest: number): number | null {
  for (let turn = 0; turn < longest; turn++) {
    const texts = new Set(turns.map((calls) => replyText(calls[turn])));
    if (texts.size > 1) return turn;
  }
  return null;
}

function Reply({ call }: { call: SessionCall | undefined }): JSX.Element {
  if (call === undefined) return <span class="quiet">ended</span>;
  return <Text text={replyText(call)} />;
}

/** Returns the part of a reply that the agent received. Ids of tool calls are left out, because they always differ. */
function replyText(call: SessionCall | undefined): string {
  if (call === undefined) return '';
  const { reasoning_content: thinking = '', content, tool_calls: calls = [] } = call.record.message;
  const named = calls.map(({ function: { name, arguments: args } }) => `${name} ${args}`);
  return [thinking, content ?? '', ...named].filter((text) => text !== '').join('\n');
}
