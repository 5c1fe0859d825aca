import { isIP } from 'node:net';
import {
  abortAfter,
  addressKind,
  checkedLookup,
  type EgressTarget,
  FloeError,
  type HostPatterns,
  MIB,
  parseTarget,
  refusalOf,
  systemClock,
} from '@floe-rl/core';
import { httpAgent, type OpenHttpReply, openHttp } from '@floe-rl/core/http';
import { readPage } from './html/page-reader.ts';
import type { PageText } from './html/page-text.ts';

/** Time limit in milliseconds to load a page with its redirects. */
const LIMIT_MS = 20_000;
/** Maximum size of a page in bytes, after decompression. */
const MAX_PAGE_BYTES = 4 * MIB;
const MAX_REDIRECTS = 5;
const REDIRECTS: readonly number[] = [301, 302, 303, 307, 308];

/**
 * Loads a page of a host that the operator allows, and returns it as text. Connects only to public addresses, unless the operator has listed
 * the host itself. Rejects with `bad_request` for a page that cannot be opened, or with the reason of `signal`.
 */
export async function openWebPage(url: string, hosts: HostPatterns | null, parent: AbortSignal): Promise<PageText> {
  const late = (): FloeError => refused(url, `it did not load within ${LIMIT_MS / 1000} s`);
  const { signal, release } = abortAfter(systemClock, LIMIT_MS, late, parent);
  try {
    const { type, text } = await loaded(url, hosts, signal);
    if (/^(text\/html|application\/xhtml)/.test(type)) return await readPage(text, signal);
    if (/^(text\/|application\/(json|xml))/.test(type)) return { title: '', text };
    throw refused(url, `it is no page but ${type === '' ? 'of no known type' : type}`);
  } catch (error) {
    signal.throwIfAborted();
    throw FloeError.is(error) ? error : refused(url, (error as Error).message);
  } finally {
    release();
  }
}

type Loaded = { readonly type: string; readonly text: string };

async function loaded(first: string, hosts: HostPatterns | null, signal: AbortSignal): Promise<Loaded> {
  let url = first;
  for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
    const target = allowedTarget(url, hosts);
    // A connection is not reused, because each connection is made to the addresses that were checked for its own host.
    const agent = httpAgent({ lookup: checkedLookup({ node: hosts, task: null }, target) });
    try {
      const headers = { accept: 'text/html, text/plain' };
      const reply = await openHttp(url, { method: 'GET', agent, signal, headers });
      const { location, 'content-type': type } = reply.headers;
      if (!REDIRECTS.includes(reply.status)) return await read(url, reply, String(type ?? '').toLowerCase());
      if (typeof location !== 'string') throw refused(url, 'it redirects nowhere');
      url = new URL(location, url).href;
    } finally {
      await agent.destroy();
    }
  }
  throw refused(first, `it has more than ${MAX_REDIRECTS} redirects`);
}

/** Returns the host of a URL. Throws `bad_request` when agents may not open it. */
function allowedTarget(text: string, hosts: HostPatterns | null): EgressTarget {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !/^https?:$/.test(url.protocol)) throw refused(text, 'it is no URL with http or https');
  const target = parseTarget(url.host, url.protocol === 'https:' ? 443 : 80);
  if (target === null) throw refused(text, 'it has no host');
  const refusal = refusalOf({ node: hosts, task: null }, target);
  if (refusal !== null) throw refused(text, refusal);
  // The addresses of a host name are checked when the name is resolved.
  const kind = isIP(target.host) === 0 ? 'public' : addressKind(target.host);
  if (kind === 'forbidden' || (kind !== 'public' && hosts === null)) throw refused(text, `it has a ${kind} address`);
  return target;
}

async function read(url: string, reply: OpenHttpReply, type: string): Promise<Loaded> {
  if (reply.status !== 200) throw refused(url, `the server answered with status ${reply.status}`);
  const tooLarge = (): FloeError => refused(url, `it is larger than ${MAX_PAGE_BYTES / MIB} MiB`);
  return { type, text: decoded(await reply.read(MAX_PAGE_BYTES, tooLarge), type) };
}

/** Decodes a page by the character set in its content type or in its head, else as UTF-8. */
function decoded(bytes: Buffer, type: string): string {
  const head = bytes.subarray(0, 2_048).toString('latin1');
  const name =
    /charset=["']?([\w-]+)/i.exec(type)?.[1] ?? /<meta[^>]+charset=["']?([\w-]+)/i.exec(head)?.[1] ?? 'utf-8';
  try {
    return new TextDecoder(name).decode(bytes);
  } catch {
    return bytes.toString('utf8');
  }
}

function refused(url: string, reason: string): FloeError {
  return new FloeError('bad_request', `${url.slice(0, 200)} cannot be opened: ${reason}`);
}
