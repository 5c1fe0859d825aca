import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { FloeError } from '@floe-rl/core';

/** The URL of one replica of the rollout server, as its origin and a path prefix. */
export type ServerAddress = { readonly origin: string; readonly prefix: string };

/**
 * The replicas of a rollout server, and the replica that is currently called. They are given as comma-separated URLs. A `file:` URL names a
 * folder in which each file contains the URL of one replica. The folder is read again whenever a replica fails, so that replicas can be
 * added, removed and moved.
 */
export class ServerList {
  private readonly text: string;
  private addresses: readonly ServerAddress[] = [];
  private address: ServerAddress | null = null;

  /**
   * Reads the list of replicas from its text form. Throws `bad_request` for an invalid URL and `peer_unreachable` for a folder that cannot
   * be read. The folder may be empty or not exist yet.
   */
  constructor(text: string) {
    this.text = text;
    if (text.trim() === '') throw new FloeError('bad_request', 'the URL of the rollout server is empty');
    this.select(0);
  }

  /** Number of replicas; 1 while the list is empty. */
  get size(): number {
    return Math.max(1, this.addresses.length);
  }

  /** Returns the replica to call. Throws `peer_unreachable` while the list is empty or cannot be read. */
  current(): ServerAddress {
    if (this.address === null) this.select(0);
    if (this.address === null) throw new FloeError('peer_unreachable', `${this.text} lists no rollout server yet`);
    return this.address;
  }

  /** Selects the replica that follows `failed` in the list, unless another call has already done so. */
  moveOn(failed: ServerAddress): void {
    if (this.address !== null && !same(this.address, failed)) return;
    const next = this.addresses.findIndex((other) => same(other, failed)) + 1;
    try {
      this.select(next);
    } catch (thrown) {
      if (!FloeError.is(thrown) || !thrown.retryable) throw thrown;
      // The folder cannot be read at present. The replicas that it listed before may still be running, so the next of those replicas is
      // used.
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
    // Files are written under a name with a leading dot and then renamed, so such names belong to incomplete files.
    const names = readdirSync(dir).filter((name) => !name.startsWith('.'));
    return names.sort().map((name) => readFileSync(join(dir, name), 'utf8').trim());
  } catch (error) {
    // The folder does not exist until the first replica has started, and a file may be removed after the folder was listed.
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    const code = (error as NodeJS.ErrnoException).code === 'ENOTDIR' ? 'bad_request' : 'peer_unreachable';
    throw new FloeError(code, `${url} is not a readable folder`, {}, error);
  }
}
