import { useSignal } from '@preact/signals';
import type { JSX } from 'preact';
import { ApiError, act } from '../api.ts';

/** Time in milliseconds within which a second press confirms the first. */
const CONFIRM_MS = 5_000;

/** A button that changes something on the server. It is pressed twice, and shows the error when the server refuses. */
export function Action(props: {
  readonly label: string;
  readonly method: 'POST' | 'DELETE';
  readonly path: string;
  readonly body?: object;
  /** Called with the reply of the server. */
  readonly onDone?: (reply: unknown) => void;
}): JSX.Element {
  const { label, method, path, body, onDone } = props;
  const state = useSignal<'ready' | 'asks' | 'runs' | 'done'>('ready');
  const problem = useSignal<string | null>(null);
  const press = async (): Promise<void> => {
    problem.value = null;
    if (state.value !== 'asks') {
      state.value = 'asks';
      setTimeout(() => {
        if (state.value === 'asks') state.value = 'ready';
      }, CONFIRM_MS);
      return;
    }
    state.value = 'runs';
    try {
      const reply = await act(method, path, body);
      state.value = 'done';
      onDone?.(reply);
    } catch (error) {
      problem.value = error instanceof ApiError ? `${error.message} (${error.code})` : String(error);
      state.value = 'ready';
    }
  };
  const texts = { ready: label, asks: `${label}: press again to confirm`, runs: `${label} …`, done: `${label}: done` };
  return (
    <>
      <button type="button" onClick={press} disabled={state.value === 'runs' || state.value === 'done'}>
        {texts[state.value]}
      </button>
      {problem.value !== null && (
        <span class="failure" role="alert">
          {' '}
          {problem.value}
        </span>
      )}
    </>
  );
}
