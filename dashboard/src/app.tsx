import { useSignal } from '@preact/signals';
import type { JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { isReachable, needsToken, setToken, token } from './api.ts';
import { linkTo, route } from './route.ts';
import { savedSession } from './saved.ts';
import { theme, turnTheme } from './theme.ts';
import { Analysis } from './views/analysis/analysis.tsx';
import { Compare } from './views/compare.tsx';
import { Contrast } from './views/contrast.tsx';
import { Fleet } from './views/fleet.tsx';
import { Groups } from './views/groups.tsx';
import { Live } from './views/live.tsx';
import { Overview } from './views/overview.tsx';
import { Session } from './views/session/session.tsx';
import { Sessions } from './views/sessions.tsx';
import { Task } from './views/task.tsx';

/** The places in the bar at the top, with the keys that lead to them. */
const PLACES = [
  { name: 'Overview', path: [], key: '1' },
  { name: 'Live', path: ['live'], key: 'l' },
  { name: 'Sessions', path: ['sessions'], key: '2' },
  { name: 'Groups', path: ['groups'], key: '3' },
  { name: 'Compare', path: ['compare'], key: '4' },
  { name: 'Analysis', path: ['analysis'], key: '5' },
  { name: 'Nodes and engines', path: ['fleet'], key: '6' },
] as const;

export function App(): JSX.Element {
  const showsKeys = useSignal(false);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === 'Escape') showsKeys.value = false;
      if (isTyping(event)) return;
      if (event.key === '?') showsKeys.value = !showsKeys.value;
      const place = PLACES.find(({ key }) => key === event.key);
      if (place !== undefined) location.hash = linkTo(place.path);
      const target = document.querySelector<HTMLElement>(`[data-key="${CSS.escape(event.key)}"]`);
      if (target === null) return;
      event.preventDefault();
      if (target instanceof HTMLInputElement) target.focus();
      else target.click();
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, []);
  return (
    <>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header>
        <strong>floe</strong>
        <nav aria-label="Places">
          {(savedSession === null ? PLACES : []).map(({ name, path }) => (
            <a key={name} href={linkTo(path)} aria-current={isAt(path) ? 'page' : undefined}>
              {name}
            </a>
          ))}
        </nav>
        <span class="space" />
        {!isReachable.value && <span class="badge bad">the server does not answer</span>}
        <button type="button" onClick={turnTheme} title="Light, dark, or as the system is">
          Theme: {theme.value}
        </button>
        <button type="button" onClick={() => (showsKeys.value = !showsKeys.value)} aria-expanded={showsKeys.value}>
          Keys
        </button>
        {token.value !== null && (
          <button type="button" onClick={() => setToken(null)}>
            Sign out
          </button>
        )}
      </header>
      {showsKeys.value && <Keys />}
      <main id="content">{needsToken.value ? <SignIn /> : <Place />}</main>
    </>
  );
}

function Place(): JSX.Element {
  const [place, id, part] = route.value.path;
  if (savedSession !== null) return <Session id={savedSession.view.session_id} />;
  if (place === undefined) return <Overview />;
  if (place === 'live') return <Live />;
  if (place === 'fleet') return <Fleet />;
  if (place === 'groups') return <Groups />;
  if (place === 'compare') return <Contrast />;
  if (place === 'analysis') return <Analysis part={id} />;
  if (place === 'sessions' && id === undefined) return <Sessions />;
  if (place === 'tasks' && id !== undefined) {
    return part === 'compare' ? <Compare taskId={id} key={id} /> : <Task id={id} key={id} />;
  }
  if (place === 'sessions' && id !== undefined) return <Session id={id} key={id} />;
  return <p class="failure">There is no such place on this page: {route.value.path.join('/')}</p>;
}

function isAt(path: readonly string[]): boolean {
  const here = route.value.path;
  return path.length === 0 ? here.length === 0 : path.join('/') === here.slice(0, path.length).join('/');
}

/** Whether a key is text for a field, or part of a shortcut of the browser. */
function isTyping({ target, ctrlKey, metaKey, altKey }: KeyboardEvent): boolean {
  return ctrlKey || metaKey || altKey || (target instanceof HTMLElement && target.matches('input, select, textarea'));
}

function Keys(): JSX.Element {
  return (
    <dl class="facts keys">
      {PLACES.map(({ name, key }) => (
        <>
          <dt>{key}</dt>
          <dd>{name}</dd>
        </>
      ))}
      <dt>[ ]</dt>
      <dd>previous and next call</dd>
      <dt>/</dt>
      <dd>find in the transcript</dd>
      <dt>?</dt>
      <dd>these keys</dd>
    </dl>
  );
}

function SignIn(): JSX.Element {
  const typed = useSignal('');
  return (
    <form
      class="sign-in"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(typed.value.trim() || null);
      }}
    >
      <h1>Sign in</h1>
      <p>
        {token.value === null ? 'This server needs a token.' : 'The server refused this token.'} A control token is in
        the file <code>control-token</code> of the floe home of the server. It is kept for this tab only.
      </p>
      <label>
        Control token{' '}
        <input
          type="password"
          autocomplete="off"
          value={typed.value}
          onInput={(event) => {
            typed.value = event.currentTarget.value;
          }}
        />
      </label>{' '}
      <button type="submit">Sign in</button>
    </form>
  );
}
