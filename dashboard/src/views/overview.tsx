import type { GroupFactsPage, RolloutStatus, SessionTotals, TaskSummary } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { adviceOf } from '../advice.ts';
import { getJson } from '../api.ts';
import { Badge, Figure, Loaded, StackedBar, toneOf } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { compact, duration, percent, rewardText, timeText } from '../format.ts';
import { useQuery } from '../query.ts';
import { linkTo } from '../route.ts';

const REFRESH_MS = 2_000;
const ADVICE_MS = 30_000;
const DAY_SECONDS = 86_400;
/** Number of tasks that the overview lists. */
const TASKS = 50;

/** The stages of a live session, in the order in which it passes through them. */
const STAGES = ['QUEUED', 'LEASED', 'INIT', 'READY', 'RUNNING', 'POSTRUN'] as const;

/** The running sessions, the limits that hold them back, and the newest tasks. */
export function Overview(): JSX.Element {
  const status = useQuery('status', (aborted) => getJson<RolloutStatus>('rollout/status', aborted), {
    nextMs: () => REFRESH_MS,
  });
  const tasks = useQuery(
    'tasks',
    async (aborted) => (await getJson<{ tasks: readonly TaskSummary[] }>(`tasks?limit=${TASKS}`, aborted)).tasks,
    { nextMs: () => REFRESH_MS },
  );
  return (
    <>
      <h1>Overview</h1>
      <Loaded of={status}>{(data) => <Now status={data} />}</Loaded>
      <Advisories />
      <h2>Newest tasks</h2>
      <Loaded of={tasks}>{(data) => <Tasks tasks={data} />}</Loaded>
    </>
  );
}

function Now({ status }: { status: RolloutStatus }): JSX.Element {
  const { sessions, bottleneck, stages, tasks, counters } = status;
  const live = STAGES.slice(1).reduce((sum, stage) => sum + (sessions[stage] ?? 0), 0);
  return (
    <>
      <p class={`verdict ${bottleneck === null ? 'good' : 'warn'}`} role="status">
        {bottleneck === null ? (
          live === 0 ? (
            'No work waits and none runs.'
          ) : (
            'No work waits for a limit.'
          )
        ) : (
          <>
            <strong>The bottleneck is {bottleneck.name}:</strong> {bottleneck.why}. {sentence(bottleneck.remedy)}
          </>
        )}
      </p>
      <div class="figures">
        <Figure label="running tasks" value={compact(tasks.running)} note={`${compact(tasks.completed)} completed`} />
        <Figure label="queued sessions" value={compact(sessions.QUEUED ?? 0)} />
        <Figure label="live sessions" value={compact(live)} />
        <Figure
          label="ended sessions"
          value={compact(ended(sessions))}
          note={`${percent(sessions.COMPLETED ?? 0, ended(sessions))} completed`}
        />
        <Figure label="mean time of a run" value={duration(stages.running_ms)} note={`${stages.samples} measured`} />
        <Figure label="retries" value={compact(counters.retries ?? 0)} />
      </div>
      <table>
        <caption>Sessions by stage</caption>
        <thead>
          <tr>
            {STAGES.map((stage) => (
              <th key={stage} scope="col">
                {stage}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            {STAGES.map((stage) => (
              <td key={stage}>{compact(sessions[stage] ?? 0)}</td>
            ))}
          </tr>
        </tbody>
      </table>
      <StackedBar
        parts={(['COMPLETED', 'TIMEOUT', 'ERROR', 'CANCELLED'] as const).map((label) => ({
          label,
          count: sessions[label] ?? 0,
          tone: label === 'CANCELLED' ? 'plain' : toneOf(label),
        }))}
      />
      <HeldBack status={status} />
    </>
  );
}

/** Advice about the sessions of the last day. */
function Advisories(): JSX.Element | null {
  const advice = useQuery(
    'advice',
    async (aborted) => {
      const since = Math.floor(Date.now() / 1000) - DAY_SECONDS;
      const [{ groups: totals }, { groups }] = await Promise.all([
        getJson<{ groups: readonly SessionTotals[] }>(`sessions/totals?by=outcome&since=${since}`, aborted),
        getJson<GroupFactsPage>(`groups?since=${since}`, aborted),
      ]);
      return adviceOf(totals, groups);
    },
    { nextMs: () => ADVICE_MS },
  );
  if (advice.data === null || advice.data.length === 0) return null;
  return (
    <>
      <h2>Worth knowing</h2>
      <ul class="notes">
        {advice.data.map(({ text, path, params }) => (
          <li key={text}>
            {text} <a href={linkTo(path, params)}>Show them</a>
          </li>
        ))}
      </ul>
    </>
  );
}

/** Limits that hold work back, and settings that would help. */
function HeldBack({ status: { holding_back: held, hints } }: { status: RolloutStatus }): JSX.Element | null {
  if (held.length === 0 && hints.length === 0) return null;
  return (
    <ul class="notes">
      {held.map(({ limit, where, count, what }) => (
        <li key={`${limit} ${where}`}>
          {compact(count)} {what} wait for <code>{limit}</code> of {where}.
        </li>
      ))}
      {hints.map(({ node_id, setting, value, suggested, why }) => (
        <li key={`${node_id} ${setting}`}>
          Node {node_id}: <code>{setting}</code> is {value}; {suggested} would suit better, because {why}.
        </li>
      ))}
    </ul>
  );
}

function Tasks({ tasks }: { tasks: readonly TaskSummary[] }): JSX.Element {
  if (tasks.length === 0) {
    return (
      <p class="quiet">
        There is no task yet. Submit one with <code>floe submit FILE --watch</code>.
      </p>
    );
  }
  return (
    <Table heads={['Task', 'State', 'Harness', 'Sessions', 'Mean reward', 'Created']}>
      {tasks.map((task) => (
        <tr key={task.task_id}>
          <td>
            <a href={linkTo(['tasks', task.task_id])}>{task.task_id}</a>
          </td>
          <td>
            <Badge tone={task.status === 'running' ? 'plain' : task.status === 'completed' ? 'good' : 'warn'}>
              {task.status}
            </Badge>
          </td>
          <td>{task.harness}</td>
          <td>
            {task.completed_sessions} of {task.total_sessions}
          </td>
          <td>{rewardText(task.mean_reward)}</td>
          <td>{timeText(task.created_at)}</td>
        </tr>
      ))}
    </Table>
  );
}

function ended(sessions: RolloutStatus['sessions']): number {
  return (['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'] as const).reduce((sum, key) => sum + (sessions[key] ?? 0), 0);
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
