import type { JSX } from 'preact';
import { Action } from '../../components/action.tsx';
import { Badge, Figure, Loaded, toneOf } from '../../components/parts.tsx';
import { compact, duration, rewardText } from '../../format.ts';
import { useQuery } from '../../query.ts';
import { linkTo, route } from '../../route.ts';
import { savedPage, savedSession } from '../../saved.ts';
import { Branches } from './branches.tsx';
import { Calls } from './call-list.tsx';
import { Evidence } from './evidence.tsx';
import { type LoadedSession, loadSession } from './load.ts';
import { Origin } from './origin.tsx';
import { Timing } from './timing.tsx';
import { Tokens } from './tokens.tsx';
import { Transcript } from './transcript.tsx';

const REFRESH_MS = 3_000;

const TABS = ['transcript', 'tokens', 'branches', 'calls', 'timing', 'evidence'] as const;
type Tab = (typeof TABS)[number];

/** One session: conversation, tokens, calls, times, and the reasons for its reward. */
export function Session({ id }: { id: string }): JSX.Element {
  const tab = TABS.find((name) => name === route.value.path[2]) ?? 'transcript';
  const session = useQuery(`session ${id}`, (aborted) => loadSession(id, aborted), {
    nextMs: (data) => (data?.view.summary == null ? REFRESH_MS : null),
  });
  return (
    <>
      <h1>
        Session <code>{id}</code>
      </h1>
      <Loaded of={session}>
        {(data) => (
          <>
            <Origin metadata={data.view.summary?.metadata ?? {}} />
            <Facts session={data} />
            {savedSession === null && data.view.summary !== null && (
              <button type="button" onClick={() => save(data)}>
                Save as one HTML file
              </button>
            )}
            <nav class="tabs" aria-label="Parts of the session">
              {TABS.map((name) => (
                <a
                  key={name}
                  href={linkTo(['sessions', id, name], Object.fromEntries(route.value.params))}
                  aria-current={name === tab ? 'page' : undefined}
                >
                  {name}
                </a>
              ))}
            </nav>
            <Part tab={tab} session={data} />
          </>
        )}
      </Loaded>
    </>
  );
}

/** Lets the browser save the session as a page of its own. */
async function save({ view, records, trajectory }: LoadedSession): Promise<void> {
  const page = await savedPage({ view, records, trajectory });
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([page], { type: 'text/html' }));
  link.download = `${view.session_id}.html`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function Part({ tab, session }: { tab: Tab; session: LoadedSession }): JSX.Element {
  if (session.calls.length === 0 && tab !== 'timing' && tab !== 'evidence') {
    const isRunning = session.view.summary === null;
    return (
      <p class="quiet">{isRunning ? 'The calls are shown when the session has ended.' : 'It made no model call.'}</p>
    );
  }
  switch (tab) {
    case 'transcript':
      return <Transcript session={session} />;
    case 'tokens':
      return <Tokens session={session} />;
    case 'branches':
      return <Branches session={session} />;
    case 'calls':
      return <Calls session={session} />;
    case 'timing':
      return <Timing session={session} />;
    case 'evidence':
      return <Evidence session={session} />;
  }
}

function Facts({ session: { view, trajectory } }: { session: LoadedSession }): JSX.Element {
  const { summary } = view;
  const id = encodeURIComponent(view.session_id);
  const outcome = summary?.outcome ?? view.status;
  const audit = trajectory?.audit ?? summary?.audit ?? null;
  return (
    <>
      <p>
        <Badge tone={toneOf(outcome)}>{outcome}</Badge>{' '}
        {summary?.unusable != null && <Badge tone="warn">not usable: {summary.unusable}</Badge>} sample{' '}
        {view.sample_index} of <a href={linkTo(['tasks', view.task_id])}>{view.task_id}</a>, attempt {view.attempt}
        {view.node_id !== null && `, node ${view.node_id}`}{' '}
        {summary === null && <Action label="Cancel the session" method="DELETE" path={`sessions/${id}`} />}
      </p>
      {summary?.error != null && (
        <p class="failure">
          {summary.error.message} <code>{summary.error.code}</code>
        </p>
      )}
      <div class="figures">
        <Figure label="reward" value={rewardText(summary?.reward ?? null)} />
        <Figure label="turns" value={compact(view.turns)} />
        <Figure
          label="sampled tokens"
          value={compact(audit?.tokens.sampled ?? view.sampled_tokens)}
          {...(audit === null ? {} : { note: auditText(audit) })}
        />
        <Figure label="time" value={duration(summary?.timing.total_ms ?? null)} />
        <Figure label="traces" value={compact(summary?.trace_count ?? 0)} />
      </div>
    </>
  );
}

function auditText({ tokens }: NonNullable<LoadedSession['trajectory']>['audit']): string {
  const excluded = Object.entries(tokens.excluded)
    .filter(([, count]) => count > 0)
    .map(([reason, count]) => `${compact(count)} ${reason}`);
  return [`${compact(tokens.trained)} trained`, ...excluded].join(', ');
}
