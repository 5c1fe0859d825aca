import { fileURLToPath } from 'node:url';

/**
 * Path of a compiled file of floe that runs as a process of its own. When the caller itself runs from `src/` (tests),
 * the compiled twin below `dist/` is meant, since Node 20 cannot run TypeScript.
 */
export function entryPath(importMetaUrl: string, relative: string): string {
  const path = fileURLToPath(new URL(relative, importMetaUrl));
  return importMetaUrl.endsWith('.ts') ? path.replace(/([\\/])src([\\/])(?!.*[\\/]src[\\/])/, '$1dist$2') : path;
}
