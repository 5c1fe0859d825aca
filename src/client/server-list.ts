import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from '../core/errors.ts';

/** One replica of the rollout server. */
export type ServerAddress = { readonly origin: string; readonly prefix: string };

/**
 * The replicas of a rollout server, and the one that is called now. Written as URLs with commas between them. A `file:` URL
 * names a folder in which each file holds the URL of one replica; it is read again whenever a replica fails, so that replicas
 * may come, go and move.
 */
export class ServerList {
  private readonly text: string;
  private addresses: readonly ServerAddress[] = [];
  private chosen: ServerAddress | null = null;

  /**
   * Throws `bad_request` for a part that is no URL, and `peer_unreachable` for a folder that cannot be read. It may still be
   * empty, or not be there yet.
   */
  constructor(text: string) {
    this.text = text;
    if (text.trim() === '') throw new FloeError('bad_request', 'the URL of the rollout server is empty');
    this.choose(0);
  }

  /** How many replicas there are; at least 1, though they may not be known yet. */
  get size(): number {
    return Math.max(1, this.addresses.length);
  }

  /** Throws `peer_unreachable` while the list is empty or cannot be read. */
  current(): ServerAddress {
    if (this.chosen === null) this.choose(0);
    if (this.chosen === null) throw new FloeError('peer_unreachable', `${this.text} names no rollout server yet`);
    return this.chosen;
  }

  /** `failed` did not answer: the next one is current from now on, unless another call has moved on already. */
  moveOn(failed: ServerAddress): void {
    if (this.chosen !== null && !same(this.chosen, failed)) return;
    const next = this.addresses.findIndex((other) => same(other, failed)) + 1;
    try {
      this.choose(next);
    } catch (thrown) {
      if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
      // The file system of the folder is away for now: the replicas that it had may well be there.
      this.chosen = this.addresses[next % this.addresses.length] ?? null;
    }
  }

  private choose(index: number): void {
    this.addresses = addressesOf(this.text);
    this.chosen = this.addresses[index % this.addresses.length] ?? null;
  }
}

function same(a: ServerAddress, b: ServerAddress): boolean {
  return a.origin === b.origin && a.prefix === b.prefix;
}

function addressesOf(text: string): ServerAddress[] {
  return text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
    .flatMap((part) => (part.startsWith('file:') ? urlsBelow(part) : [part]))
    .map(addressOf);
}

function addressOf(text: string): ServerAddress {
  if (!URL.canParse(text)) throw new FloeError('bad_request', `${text} is not a URL`);
  const { origin, pathname, protocol } = new URL(text);
  if (protocol !== 'http:' && protocol !== 'https:')
    throw new FloeError('bad_request', `${text}: a rollout server has an http or https URL`);
  return { origin, prefix: pathname.replace(/\/+$/, '') };
}

function urlsBelow(url: string): string[] {
  if (!URL.canParse(url)) throw new FloeError('bad_request', `${url} is not a URL`);
  const dir = fileURLToPath(url);
  try {
    // Files appear here by being renamed into place; a name with a leading dot is one that is still being written.
    const names = readdirSync(dir).filter((name) => !name.startsWith('.'));
    return names.sort().map((name) => readFileSync(join(dir, name), 'utf8').trim());
  } catch (error) {
    // Before the first replica is up there is no folder, and a file may go between the two calls.
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    const code = (error as NodeJS.ErrnoException).code === 'ENOTDIR' ? 'bad_request' : 'peer_unreachable';
    throw new FloeError(code, `${url} is no folder that can be read`, {}, error);
  }
}
