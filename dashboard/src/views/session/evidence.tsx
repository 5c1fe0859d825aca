import type { JSX } from 'preact';
import { rewardText } from '../../format.ts';
import type { LoadedSession } from './load.ts';
import { Text } from './transcript.tsx';

/** Shows why a session has its reward: the parts of the reward, the report of the evaluator, and the end of the agent. */
export function Evidence({ session: { view } }: { session: LoadedSession }): JSX.Element {
  const { summary } = view;
  if (summary === null) return <p class="quiet">The reward is known when the session has ended.</p>;
  const { agent, reward_components: components, reward_details: details, metadata } = summary;
  return (
    <>
      {Object.keys(components).length > 0 && (
        <table>
          <caption>Parts of the reward {rewardText(summary.reward)}</caption>
          <tbody>
            {Object.entries(components).map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>{rewardText(value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Json title="What the evaluator reports" value={details} />
      {agent !== null && (
        <>
          {agent.episode !== undefined && <Json title="The agent’s episode" value={agent.episode} />}
          <h3>Output of the agent (exit code {agent.exit_code ?? 'none'})</h3>
          <Text text={agent.stdout_tail === '' ? '[none]' : agent.stdout_tail} />
          {agent.stderr_tail !== '' && (
            <>
              <h3>Errors of the agent</h3>
              <Text text={agent.stderr_tail} />
            </>
          )}
        </>
      )}
      <Json title="Metadata of the task" value={metadata} />
    </>
  );
}

function Json({ title, value }: { title: string; value: object }): JSX.Element | null {
  if (Object.keys(value).length === 0) return null;
  return (
    <>
      <h3>{title}</h3>
      <Text text={JSON.stringify(value, null, 2)} />
    </>
  );
}
