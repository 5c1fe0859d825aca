import { existsSync } from 'node:fs';
import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, FloeError, newId, sleep, systemClock, wellFormedJson } from '@floe-rl/core';
import { callHeaders, chatBody, replyError, turnOf } from './chat-api.ts';
import type { Model } from './model.ts';

/** Interval in milliseconds at which the mailbox is checked for a reply. */
const POLL_MS = 20;

/**
 * Returns a model that is called through a mailbox: a directory of requests and replies, for an agent in a sandbox without network. Calls
 * reject with the session's error, or with `session_closed` when the mailbox takes no more calls.
 */
export function mailboxModel(dir: string, model: string, clock: Clock = systemClock): Model {
  return {
    async ask(request, signal) {
      const name = newId('call', clock).replace('_', '-');
      const body = { ...chatBody(request, model), extra_headers: callHeaders(request) };
      const path = join(dir, 'requests', name);
      await writeRequest(path, wellFormedJson(body));
      const answer = join(dir, 'replies', name);
      for (;;) {
        if (existsSync(`${answer}.json`)) return turnOf(await take(`${answer}.json`), name);
        if (existsSync(`${answer}.error.json`)) throw errorOf(await take(`${answer}.error.json`), dir);
        if (existsSync(join(dir, 'SESSION_END'))) throw new FloeError('session_closed', 'the session has ended');
        await sleep(clock, POLL_MS, signal);
      }
    },
  };
}

async function writeRequest(path: string, text: string): Promise<void> {
  try {
    await writeFile(`${path}.part`, text);
    await rename(`${path}.part`, `${path}.json`);
  } catch (cause) {
    throw new FloeError('peer_unreachable', `the mailbox takes no request: ${(cause as Error).message}`, {}, cause);
  }
}

async function take(path: string): Promise<string> {
  const text = await readFile(path, 'utf8');
  await rm(path, { force: true });
  return text;
}

function errorOf(text: string, dir: string): FloeError {
  const { status } = JSON.parse(text) as { readonly status?: number };
  return replyError(status ?? 500, text, `the mailbox ${dir}`);
}
