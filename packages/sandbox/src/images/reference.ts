import { FloeError } from '@floe-rl/core';

/** Registry of image references without a registry. */
const DEFAULT_REGISTRY = 'docker.io';
/** Namespace on {@link DEFAULT_REGISTRY} of images without a namespace. */
const OFFICIAL_NAMESPACE = 'library';
const MAX_CHARS = 512;

const HOST = /^(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?$/;
const PATH = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;

/** An image in a registry, such as `docker.io/library/python:3.12`. */
export type ImageReference = {
  /** Host name of the registry, with its port if it has one. */
  readonly registry: string;
  readonly repository: string;
  /** Tag of the image; `null` when the reference has a digest and no tag. */
  readonly tag: string | null;
  /** Digest of the image's manifest, `sha256:` and 64 hexadecimal digits; `null` when the reference has none. */
  readonly digest: string | null;
};

/**
 * Parses an image reference as Docker does: without a registry it is on docker.io, and without tag and digest the tag is `latest`. Throws
 * `schema_violation` for an invalid reference; `field` names it in the message.
 */
export function parseReference(text: string, field = 'image'): ImageReference {
  const invalid = (problem: string): FloeError =>
    new FloeError(
      'schema_violation',
      `${field}: ${JSON.stringify(text.slice(0, MAX_CHARS))} is no image reference: ${problem}`,
      {
        path: field,
      },
    );
  if (text.length > MAX_CHARS) throw invalid(`it has more than ${MAX_CHARS} characters`);
  const [named = '', digest = null, ...more] = text.split('@');
  if (more.length > 0 || (digest !== null && !DIGEST.test(digest))) {
    throw invalid('after @ there must be sha256: and 64 hexadecimal digits');
  }
  const colon = named.lastIndexOf(':');
  const hasTag = colon > named.lastIndexOf('/');
  const name = hasTag ? named.slice(0, colon) : named;
  const tag = hasTag ? named.slice(colon + 1) : null;
  if (tag !== null && !TAG.test(tag)) throw invalid(`${JSON.stringify(tag)} is no tag`);
  const [first = '', ...rest] = name.split('/');
  const isHost = rest.length > 0 && (/[.:]/.test(first) || first === 'localhost');
  const registry = isHost ? first : DEFAULT_REGISTRY;
  if (!HOST.test(registry)) throw invalid(`${JSON.stringify(registry)} is no registry`);
  const path = isHost ? rest.join('/') : name;
  if (!PATH.test(path))
    throw invalid(`the repository ${JSON.stringify(path)} may have lower-case letters, digits and . _ - / only`);
  const isOfficial = registry === DEFAULT_REGISTRY && !path.includes('/');
  return {
    registry,
    repository: isOfficial ? `${OFFICIAL_NAMESPACE}/${path}` : path,
    tag: tag ?? (digest === null ? 'latest' : null),
    digest,
  };
}

/**
 * Returns the reference with its registry and its tag or digest. When it has both, the digest alone is returned, because it determines the
 * image.
 */
export function formatReference({ registry, repository, tag, digest }: ImageReference): string {
  return `${registry}/${repository}${digest === null ? `:${tag}` : `@${digest}`}`;
}
