import type { SessionView, SubmitReply, TaskStatus } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { Action } from '../components/action.tsx';
import { Badge, Figure, Loaded, toneOf } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { compact, duration, rewardText } from '../format.ts';
import { useQuery } from '../query.ts';
import { linkTo } from '../route.ts';

const REFRESH_MS = 2_000;

/** One task: its group of samples, which of them a trainer can use, and why the others cannot be used. */
export function Task({ id }: { id: string }): JSX.Element {
  const name = encodeURIComponent(id);
  const status = useQuery(`task ${id}`, (aborted) => getJson<TaskStatus>(`rollout/task/${name}`, aborted), {
    nextMs: () => REFRESH_MS,
  });
  const sessions = useQuery(
    `sessions of ${id}`,
    async (aborted) =>
      (await getJson<{ sessions: readonly SessionView[] }>(`tasks/${name}/sessions`, aborted)).sessions,
    { nextMs: () => REFRESH_MS },
  );
  return (
    <>
      <h1>
        Task <code>{id}</code>
      </h1>
      <Loaded of={status}>{(data) => <Group status={data} sessions={sessions.data ?? []} />}</Loaded>
      <p>
        <a href={linkTo(['tasks', id, 'compare'])}>Compare the samples side by side</a>{' '}
        {status.data?.status === 'running' && <a href={linkTo(['live'], { task: id })}>Watch it live</a>}{' '}
        {status.data?.status === 'running' && (
          <Action label="Cancel the task" method="DELETE" path={`rollout/task/${name}`} />
        )}{' '}
        <Action
          label="Submit it again"
          method="POST"
          path={`rollout/task/${name}/repeat`}
          onDone={(reply) => {
            location.hash = linkTo(['tasks', (reply as SubmitReply).task_id]);
          }}
        />
      </p>
      <h2>Sessions</h2>
      <Loaded of={sessions}>{(data) => <Sessions sessions={data} />}</Loaded>
    </>
  );
}

function Group({ status, sessions }: { status: TaskStatus; sessions: readonly SessionView[] }): JSX.Element {
  const { group } = status;
  const rewards = sessions
    .filter(({ summary }) => summary !== null && summary.unusable === null && summary.reward !== null)
    .map(({ summary }) => summary?.reward ?? 0);
  const reasons = Object.entries(group.unusable).map(([reason, count]) => `${count} ${reason}`);
  return (
    <>
      {isDegenerate(rewards) && (
        <p class="verdict warn">
          All {rewards.length} usable samples have the reward {rewardText(rewards[0] ?? null)}, so the group has no
          advantage to learn from.
        </p>
      )}
      <div class="figures">
        <Figure label="state" value={status.status} />
        <Figure label="ended" value={`${status.completed_sessions} of ${status.total_sessions}`} />
        <Figure
          label="usable"
          value={compact(group.usable)}
          {...(reasons.length > 0 ? { note: reasons.join(', ') } : {})}
        />
        <Figure label="mean reward" value={rewardText(mean(rewards))} note={spreadOf(rewards)} />
        <Figure label="refilled" value={compact(group.refilled)} />
      </div>
    </>
  );
}

function Sessions({ sessions }: { sessions: readonly SessionView[] }): JSX.Element {
  return (
    <Table
      heads={['Sample', 'Session', 'Outcome', 'Reward', 'Turns', 'Sampled tokens', 'Trained tokens', 'Time', 'Node']}
    >
      {sessions.map(({ session_id: id, summary, ...session }) => (
        <tr key={id}>
          <td>{session.sample_index}</td>
          <td>
            <a href={linkTo(['sessions', id])}>{id}</a>
          </td>
          <td>
            <Badge tone={toneOf(summary?.outcome ?? session.status)}>{summary?.outcome ?? session.status}</Badge>{' '}
            {summary?.unusable != null && summary.unusable !== summary.outcome && (
              <Badge tone="warn">{summary.unusable}</Badge>
            )}
          </td>
          <td>{rewardText(summary?.reward ?? null)}</td>
          <td>{session.turns}</td>
          <td>{compact(session.sampled_tokens)}</td>
          <td>{summary === null ? '–' : compact(summary.trainable_tokens)}</td>
          <td>{duration(summary?.timing.total_ms ?? null)}</td>
          <td>{session.node_id ?? '–'}</td>
        </tr>
      ))}
    </Table>
  );
}

/** Whether a trainer learns nothing from a group with these usable rewards: there are several, and all are equal. */
function isDegenerate(rewards: readonly number[]): boolean {
  return rewards.length > 1 && rewards.every((reward) => reward === rewards[0]);
}

function mean(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function spreadOf(rewards: readonly number[]): string {
  if (rewards.length < 2) return `${rewards.length} with a reward`;
  return `${rewardText(Math.min(...rewards))} to ${rewardText(Math.max(...rewards))}`;
}
