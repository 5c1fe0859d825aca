import type { LiveSessions, RolloutEvent } from '@floe-rl/core/schema';
import { type Signal, useSignal } from '@preact/signals';
import type { JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { getJson, readEvents, token } from '../api.ts';
import { Badge, toneOf } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { compact, duration, visible } from '../format.ts';
import {
  MAX_SHOWN,
  type ShownSession,
  type ShownSessions,
  withEvent,
  withLoaded,
  withoutGone,
} from '../live-sessions.ts';
import { linkTo, route } from '../route.ts';

/** Time between two drawings while events arrive, in milliseconds. */
const DRAW_MS = 250;
/** Time in milliseconds after which the list is loaded once more. Events can be missed, and they do not contain the node of a session. */
const RELOAD_MS = 10_000;
const RECONNECT_MS = 1_000;

type State = {
  readonly sessions: ShownSessions;
  /** Number of sessions that run, of all tasks; `null` before it is known. */
  readonly total: number | null;
  readonly isConnected: boolean;
};

/** The sessions that run now, as they change: stage, turns, tokens and the newest reply. */
export function Live(): JSX.Element {
  const taskId = route.value.params.get('task');
  const state = useSignal<State>({ sessions: new Map(), total: null, isConnected: false });
  useEffect(() => follow(state, taskId), [taskId, token.value]);
  const { sessions, total, isConnected } = state.value;
  const running = [...sessions.values()].filter(({ outcome }) => outcome === null).length;
  return (
    <>
      <h1>Live</h1>
      <p aria-live="polite">
        {isConnected ? <Badge tone="good">connected</Badge> : <Badge tone="warn">connecting</Badge>}{' '}
        {total !== null && `${compact(total)} sessions run`}
        {taskId !== null && (
          <>
            ; shown are those of <a href={linkTo(['tasks', taskId])}>{taskId}</a> (
            <a href={linkTo(['live'])}>show all</a>)
          </>
        )}
        {taskId === null && total !== null && total > running && `; the first ${MAX_SHOWN} of them are shown`}
        {!isConnected && total !== null && '. What is below may be out of date.'}
      </p>
      {sessions.size === 0 ? (
        <p class="quiet">{total === null ? 'Loading…' : 'No session runs.'}</p>
      ) : (
        <Table heads={['Session', 'Task', 'Stage', 'Turns', 'Sampled tokens', 'Node', 'Unchanged for', 'Newest reply']}>
          {[...sessions.values()].map((session) => (
            <Row key={session.session_id} session={session} />
          ))}
        </Table>
      )}
    </>
  );
}

function Row({ session }: { session: ShownSession }): JSX.Element {
  const { session_id: id, task_id: task, outcome, status } = session;
  return (
    <tr>
      <td>
        <a href={linkTo(['sessions', id])}>{id}</a>
      </td>
      <td>
        <a href={linkTo(['tasks', task])}>{task}</a> #{session.sample_index}
      </td>
      <td>{outcome === null ? status : <Badge tone={toneOf(outcome)}>{outcome}</Badge>}</td>
      <td>{session.turns}</td>
      <td>{compact(session.sampled_tokens)}</td>
      <td>{session.node_id ?? '–'}</td>
      <td>{duration(Math.max(0, Date.now() - Date.parse(session.updated_at)))}</td>
      <td class="reply-excerpt">{session.last_reply === null ? '–' : visible(session.last_reply)}</td>
    </tr>
  );
}

/** Keeps the state up to date, and connects again whenever the connection ends. Returns a function that ends this. */
function follow(state: Signal<State>, taskId: string | null): () => void {
  const ended = new AbortController();
  const { signal } = ended;
  let sessions: ShownSessions = new Map();
  let timer: ReturnType<typeof setTimeout> | undefined;
  const draw = (): void => {
    timer ??= setTimeout(() => {
      timer = undefined;
      sessions = withoutGone(sessions, Date.now());
      state.value = { ...state.value, sessions };
    }, DRAW_MS);
  };
  const load = async (): Promise<void> => {
    const filter = taskId === null ? '' : `&task=${encodeURIComponent(taskId)}`;
    const loaded = await getJson<LiveSessions>(`sessions/live?limit=${MAX_SHOWN}${filter}`, signal);
    sessions = withLoaded(sessions, loaded);
    state.value = { ...state.value, total: loaded.total, isConnected: true };
    draw();
  };
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      const stream = new AbortController();
      const stop = (): void => stream.abort();
      signal.addEventListener('abort', stop, { once: true });
      // The list is loaded while the stream is open, so that no change between the two is missed.
      const reload = setInterval(() => void (document.hidden ? undefined : load().catch(stop)), RELOAD_MS);
      try {
        await readEvents<RolloutEvent>(stream.signal, load, (event) => {
          sessions = withEvent(sessions, event, taskId, Date.now());
          draw();
        });
      } catch {
        // The header shows that the server does not answer.
      } finally {
        clearInterval(reload);
        signal.removeEventListener('abort', stop);
      }
      state.value = { ...state.value, isConnected: false };
      await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
    }
  };
  void run();
  return () => {
    ended.abort();
    clearTimeout(timer);
  };
}
