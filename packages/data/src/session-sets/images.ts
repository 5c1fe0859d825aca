import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import { IMAGE_REFERENCE } from '@floe-rl/core/schema';
import type { SetFolder } from './set-folder.ts';

const REFERENCE = new RegExp(`^${IMAGE_REFERENCE}([0-9a-f]{64})$`);
const DATA_URL = /^data:image\/([a-z0-9.+-]{1,40});base64,([A-Za-z0-9+/]+={0,2})$/;
const IMAGE_FILE = /^images\/([0-9a-f]{64})\.([a-z0-9.+-]{1,40})$/;

/** Stores the images of all sessions of a set as files. Each image is stored once, even if several sessions have it. */
export class ImageFiles {
  private readonly folder: SetFolder;
  private readonly stored = new Set<string>();

  constructor(folder: SetFolder) {
    this.folder = folder;
  }

  /** Returns the images with the path of a file in place of each URL that contains an image in base64. Other URLs are kept. */
  async store(images: Readonly<Record<string, string>>): Promise<Record<string, string>> {
    const kept: Record<string, string> = {};
    for (const [reference, url] of Object.entries(images)) kept[reference] = await this.storeOne(reference, url);
    return kept;
  }

  private async storeOne(reference: string, url: string): Promise<string> {
    const [, digest] = REFERENCE.exec(reference) ?? [];
    const [, type, base64] = DATA_URL.exec(url) ?? [];
    if (digest === undefined || type === undefined || base64 === undefined || digest !== digestOf(url)) return url;
    const bytes = Buffer.from(base64, 'base64');
    // Non-canonical base64, such as text with unused bits set, could not be restored from its bytes.
    if (bytes.toString('base64') !== base64) return url;
    const path = `images/${digest}.${type}`;
    if (!this.stored.has(path)) {
      await this.folder.write(path, bytes, 0);
      await this.folder.close(path);
      this.stored.add(path);
    }
    return path;
  }
}

/** Returns the images with their URLs. Throws `corrupt_record` when a file is missing or contains another image. */
export async function loadImages(
  dir: string,
  images: Readonly<Record<string, string>>,
): Promise<Record<string, string>> {
  const loaded: Record<string, string> = {};
  for (const [reference, place] of Object.entries(images)) {
    const [, digest, type] = IMAGE_FILE.exec(place) ?? [];
    loaded[reference] = digest === undefined ? place : await urlOf(join(dir, place), digest, type ?? '');
  }
  return loaded;
}

async function urlOf(path: string, digest: string, type: string): Promise<string> {
  const bytes = await readFile(path).catch((cause: Error) => {
    throw new FloeError('corrupt_record', `the image ${path} cannot be read: ${cause.message}`, { file: path }, cause);
  });
  const url = `data:image/${type};base64,${bytes.toString('base64')}`;
  if (digestOf(url) === digest) return url;
  throw new FloeError('corrupt_record', `the image ${path} is not the one of its name`, { file: path });
}

function digestOf(url: string): string {
  return createHash('sha256').update(url).digest('hex');
}
