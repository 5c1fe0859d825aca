import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from '../core/errors.ts';

/** One replica of the rollout server. */
export type ServerAddress = { readonly origin: string; readonly prefix: string };

/**
 * The replicas of a rollout server and the one that is currently called. The list is written as comma-separated URLs. A `file:` URL names a
 * folder in which each file holds the URL of one replica; the folder is re-read whenever a replica fails, so that replicas can be added,
 * removed and moved.
 */
export class ServerList {
  private readonly text: string;
  private addresses: readonly ServerAddress[] = [];
  private address: ServerAddress | null = null;

  /**
   * Throws `bad_request` for an invalid URL and `peer_unreachable` for a folder that cannot be read. The folder may be empty or not exist
   * yet.
   */
  constructor(text: string) {
    this.text = text;
    if (text.trim() === '') throw new FloeError('bad_request', 'the URL of the rollout server is empty');
    this.select(0);
  }

  /** Number of replicas; 1 while none is known yet. */
  get size(): number {
    return Math.max(1, this.addresses.length);
  }

  /** Throws `peer_unreachable` while the list is empty or cannot be read. */
  current(): ServerAddress {
    if (this.address === null) this.select(0);
    if (this.address === null) throw new FloeError('peer_unreachable', `${this.text} lists no rollout server yet`);
    return this.address;
  }

  /** Makes the replica after `failed` the current one, unless another call has already done so. */
  moveOn(failed: ServerAddress): void {
    if (this.address !== null && !same(this.address, failed)) return;
    const next = this.addresses.findIndex((other) => same(other, failed)) + 1;
    try {
      this.select(next);
    } catch (thrown) {
      if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
      // The folder cannot be read at present, but the replicas that it listed may well be running.
      this.address = this.addresses[next % this.addresses.length] ?? null;
    }
  }

  private select(index: number): void {
    this.addresses = addressesOf(this.text);
    this.address = this.addresses[index % this.addresses.length] ?? null;
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
    .flatMap((part) => (part.startsWith('file:') ? urlsIn(part) : [part]))
    .map(addressOf);
}

function addressOf(text: string): ServerAddress {
  if (!URL.canParse(text)) throw new FloeError('bad_request', `${text} is not a URL`);
  const { origin, pathname, protocol } = new URL(text);
  if (protocol !== 'http:' && protocol !== 'https:')
    throw new FloeError('bad_request', `${text}: the URL of a rollout server must begin with http: or https:`);
  return { origin, prefix: pathname.replace(/\/+$/, '') };
}

function urlsIn(url: string): string[] {
  if (!URL.canParse(url)) throw new FloeError('bad_request', `${url} is not a URL`);
  const dir = fileURLToPath(url);
  try {
    // Writers rename files into place; a name with a leading dot is a file that is still being written.
    const names = readdirSync(dir).filter((name) => !name.startsWith('.'));
    return names.sort().map((name) => readFileSync(join(dir, name), 'utf8').trim());
  } catch (error) {
    // The folder does not exist before the first replica is up, and a file may be removed between the two calls.
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    const code = (error as NodeJS.ErrnoException).code === 'ENOTDIR' ? 'bad_request' : 'peer_unreachable';
    throw new FloeError(code, `${url} is not a readable folder`, {}, error);
  }
}
