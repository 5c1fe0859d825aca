import { mkdir, readFile, rm, stat, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { FloeError, parseAs, parseJson } from '@floe-rl/core';
import { z } from 'zod';

/** Path of the directory with the blobs of all layouts of a store, as seen from the `blobs` link of a layout. */
const SHARED_BLOBS = '../../../blobs';

const digestSchema = z.string().regex(/^sha256:[0-9a-f]{64}$/);
const descriptorSchema = z.object({ digest: digestSchema, size: z.number().min(0).default(0) });
const indexSchema = z.object({ manifests: z.array(descriptorSchema).length(1) });
const manifestSchema = z.object({ config: descriptorSchema, layers: z.array(descriptorSchema) });
const configSchema = z.object({
  architecture: z.string().default('unknown'),
  config: z
    .object({
      Env: z.array(z.string()).nullish(),
      WorkingDir: z.string().nullish(),
      User: z.string().nullish(),
    })
    .nullish(),
});

/** The facts of an image's manifest and configuration that floe uses. */
export type ImageFacts = {
  /** Digest of the manifest: `sha256:` and 64 hexadecimal digits. */
  readonly digest: string;
  readonly architecture: string;
  /** Environment variables of the image. */
  readonly env: Readonly<Record<string, string>>;
  /** Working directory of the image; `null` when it sets none. */
  readonly workdir: string | null;
  /** The user that programs of the image run as, as a name or an id; `null` when the image sets none. */
  readonly user: string | null;
  /** Size of the compressed layers in bytes. Images that share layers each count them. */
  readonly layerBytes: number;
};

/** Creates the link to the shared blobs in a new layout. The registry client leaves an empty directory in its place, which is removed. */
export async function linkBlobs(layoutDir: string): Promise<void> {
  await mkdir(layoutDir, { recursive: true });
  await rm(join(layoutDir, 'blobs'), { recursive: true, force: true });
  await symlink(SHARED_BLOBS, join(layoutDir, 'blobs'));
}

/**
 * Reads the manifest and the configuration of the only image in an OCI layout. Rejects with `corrupt_record` when a file is invalid or a
 * blob is missing or has the wrong size.
 */
export async function readLayout(layoutDir: string): Promise<ImageFacts> {
  const index = await readPart(join(layoutDir, 'index.json'), indexSchema);
  const [{ digest }] = index.manifests as [z.output<typeof descriptorSchema>];
  const manifest = await readPart(blobPath(layoutDir, digest), manifestSchema);
  const { architecture, config } = await readPart(blobPath(layoutDir, manifest.config.digest), configSchema);
  for (const layer of manifest.layers) {
    const path = blobPath(layoutDir, layer.digest);
    const size = await stat(path).then(
      (file) => file.size,
      () => -1,
    );
    if (size !== layer.size) {
      throw new FloeError('corrupt_record', `${path} is not the layer of ${layer.size} bytes that the image needs`, {
        path,
      });
    }
  }
  return {
    digest,
    architecture,
    env: Object.fromEntries((config?.Env ?? []).map((line) => splitVariable(line))),
    workdir: config?.WorkingDir || null,
    user: config?.User || null,
    layerBytes: manifest.layers.reduce((sum, { size }) => sum + size, 0),
  };
}

/** Returns the paths of all blobs of the layout's image. */
export async function blobsOf(layoutDir: string): Promise<string[]> {
  const index = await readPart(join(layoutDir, 'index.json'), indexSchema);
  const [{ digest }] = index.manifests as [z.output<typeof descriptorSchema>];
  const manifest = await readPart(blobPath(layoutDir, digest), manifestSchema);
  return [digest, manifest.config.digest, ...manifest.layers.map((layer) => layer.digest)].map((one) =>
    blobPath(layoutDir, one),
  );
}

function blobPath(layoutDir: string, digest: string): string {
  const [algorithm = '', hex = ''] = digest.split(':');
  return join(layoutDir, 'blobs', algorithm, hex);
}

function splitVariable(line: string): [string, string] {
  const at = line.indexOf('=');
  return at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1)];
}

async function readPart<T extends z.ZodType>(path: string, schema: T): Promise<z.output<T>> {
  try {
    return parseAs(schema, parseJson(await readFile(path)), path, path);
  } catch (cause) {
    throw new FloeError(
      'corrupt_record',
      `${path} is no valid part of an image: ${(cause as Error).message}`,
      { path },
      cause,
    );
  }
}
