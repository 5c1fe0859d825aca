import { signal } from '@preact/signals';

/** An error that the server answered, or `unreachable` when it did not answer. */
export class ApiError extends Error {
  readonly code: string;
  readonly status: number;

  constructor(code: string, message: string, status: number) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const STORED_TOKEN = 'floe-token';
/** The page is at `…/dashboard/`, and the API one level above it. */
const API_ROOT = new URL('../', document.baseURI);

/** The control token; `null` when the reader has given none. It is kept for this tab only. */
export const token = signal<string | null>(sessionStorage.getItem(STORED_TOKEN));
/** Whether the server refused the last request because it had no valid token. */
export const needsToken = signal(false);
/** Whether the server answered the last request at all. */
export const isReachable = signal(true);

/**
 * Signs in with the token of an address such as `#/sign-in/TOKEN` or `#/sign-in/TOKEN/sessions`, and removes it from the address and the
 * history.
 */
export function signInByAddress(): void {
  const [, given, place = '/'] = /^#\/sign-in\/([^/?]+)(\/.*)?$/.exec(location.hash) ?? [];
  if (given === undefined) return;
  setToken(decodeURIComponent(given));
  location.replace(`#${place}`);
}

/** Keeps a token for the requests of this tab; `null` forgets it. */
export function setToken(value: string | null): void {
  token.value = value;
  needsToken.value = value === null;
  if (value === null) sessionStorage.removeItem(STORED_TOKEN);
  else sessionStorage.setItem(STORED_TOKEN, value);
}

/** Requests a path of the API, relative to its root. Rejects with an {@link ApiError}, or with the reason of `signal`. */
async function request(method: string, path: string, aborted: AbortSignal, body?: object): Promise<Response> {
  const headers: Record<string, string> = token.value === null ? {} : { authorization: `Bearer ${token.value}` };
  if (body !== undefined) headers['content-type'] = 'application/json';
  const text = body === undefined ? null : JSON.stringify(body);
  let response: Response;
  try {
    response = await fetch(new URL(path, API_ROOT), { method, headers, body: text, signal: aborted });
  } catch (cause) {
    aborted.throwIfAborted();
    isReachable.value = false;
    throw new ApiError('unreachable', `the server does not answer: ${(cause as Error).message}`, 0);
  }
  isReachable.value = true;
  if (response.ok) return response;
  if (response.status === 401) needsToken.value = true;
  throw await errorOf(response);
}

/** Changes something on the server. Rejects with an {@link ApiError} when it refuses. */
export async function act(method: 'POST' | 'DELETE', path: string, body?: object): Promise<unknown> {
  const text = await (await request(method, path, new AbortController().signal, body)).text();
  return text === '' ? null : JSON.parse(text);
}

/** Sends JSON and returns the JSON of the reply. */
export async function postJson<T>(path: string, body: object, aborted: AbortSignal): Promise<T> {
  return (await (await request('POST', path, aborted, body)).json()) as T;
}

/** Requests JSON. The caller names the type of the reply. */
export async function getJson<T>(path: string, aborted: AbortSignal): Promise<T> {
  return (await (await request('GET', path, aborted)).json()) as T;
}

/** Maximum number of characters of one event. The server writes shorter ones. */
const MAX_EVENT_CHARS = 1_000_000;

/**
 * Passes the events of the server to `onEvent` until the stream ends. `onOpen` is called when it is open. Rejects as {@link getJson} does, and when
 * `onOpen` does.
 */
export async function readEvents<T>(
  aborted: AbortSignal,
  onOpen: () => Promise<void>,
  onEvent: (event: T) => void,
): Promise<void> {
  const { body } = await request('GET', 'events', aborted);
  if (body === null) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    await onOpen();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (text + part.value).split('\n');
      text = lines.pop() ?? '';
      if (text.length > MAX_EVENT_CHARS) throw new ApiError('bad_reply', 'an event is too long', 0);
      for (const line of lines) if (line.startsWith('data: ')) onEvent(JSON.parse(line.slice('data: '.length)) as T);
    }
  } finally {
    await reader.cancel();
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { code: string; message: string } };
    return new ApiError(error.code, error.message, response.status);
  } catch {
    return new ApiError('bad_reply', text.slice(0, 200) || response.statusText, response.status);
  }
}
