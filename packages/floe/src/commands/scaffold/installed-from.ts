import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseJson } from '@floe-rl/core';
import { z } from 'zod';

const manifestSchema = z.object({ version: z.string() });
/** The part of npm's record of an installation that states where each package is from. */
const recordSchema = z.object({
  packages: z.record(z.string(), z.object({ version: z.string().optional(), resolved: z.string().optional() })),
});

/**
 * Returns the version of floe that a `package.json` must depend on to get the floe in `folder`: the exact version when npm installed it from a
 * registry, else the folder. For a checkout or a tarball, a version alone would not do: a registry may have another floe under it, or none.
 */
export function installedFrom(folder: string): string {
  const { version } = manifestSchema.parse(parseJson(readFileSync(join(folder, 'package.json'))));
  const resolved = resolvedUrl(folder);
  const isFromRegistry = resolved !== null && /^https?:/.test(resolved) && resolved.endsWith(`/-/floe-${version}.tgz`);
  return isFromRegistry ? version : `file:${folder}`;
}

/** Returns the source of the package that npm installed in `folder`; `null` for a folder that npm has not installed. */
function resolvedUrl(folder: string): string | null {
  try {
    const record = readFileSync(join(dirname(folder), '.package-lock.json'));
    return recordSchema.parse(parseJson(record)).packages['node_modules/floe']?.resolved ?? null;
  } catch {
    return null;
  }
}
