import { type Signal, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { ApiError, token } from './api.ts';

const TOO_MANY_REQUESTS = 429;

/** State of data that is loaded from the server. `data` stays while newer data is loaded, and when loading it has failed. */
export type Query<T> = { readonly data: T | null; readonly error: ApiError | null; readonly isLoading: boolean };

export type QueryOptions<T> = {
  /** Returns the time in milliseconds until the data is loaded again; `null` for never. Default: never. */
  readonly nextMs?: (data: T | null) => number | null;
  /** A query whose data a reader needs first. The new query begins when that query has its first data or has failed. Default: none. */
  readonly after?: Query<unknown>;
};

/** Loads data whenever `key` changes, and again as `nextMs` says. A page that is hidden does not load again. Data of another key is not shown. */
export function useQuery<T>(
  key: string,
  load: (aborted: AbortSignal) => Promise<T>,
  { nextMs = () => null, after }: QueryOptions<T> = {},
): Query<T> {
  const state: Signal<Query<T> & { readonly key: string }> = useSignal({
    key,
    data: null,
    error: null,
    isLoading: true,
  });
  const isReady = after === undefined || after.data !== null || !after.isLoading;
  useEffect(() => {
    if (!isReady) return undefined;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    if (state.value.key !== key) state.value = { key, data: null, error: null, isLoading: true };
    const repeat = (): void => {
      const ms = isRefused(state.value.error) ? null : nextMs(state.value.data);
      if (ms === null) return;
      timer = setTimeout(() => {
        if (document.hidden) repeat();
        else void run();
      }, ms);
    };
    const run = async (): Promise<void> => {
      state.value = { ...state.value, isLoading: true };
      try {
        const data = await load(controller.signal);
        if (controller.signal.aborted) return;
        state.value = { key, data, error: null, isLoading: false };
      } catch (error) {
        if (controller.signal.aborted) return;
        state.value = { ...state.value, error: asApiError(error), isLoading: false };
      }
      repeat();
    };
    void run();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [key, token.value, isReady]);
  return state.value.key === key ? state.value : { data: null, error: null, isLoading: true };
}

/** Whether the server would answer the same request with the same error. */
function isRefused(error: ApiError | null): boolean {
  return error !== null && error.status >= 400 && error.status < 500 && error.status !== TOO_MANY_REQUESTS;
}

function asApiError(error: unknown): ApiError {
  return error instanceof ApiError ? error : new ApiError('page_failed', String(error), 0);
}
