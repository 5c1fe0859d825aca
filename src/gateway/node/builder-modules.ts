import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { FloeError } from '../../core/errors.ts';
import type { Builder } from '../../tokens/builders/builder.ts';
import { customBuilder } from '../../tokens/builders/custom.ts';
import { type BuilderRegistry, builderRegistry } from '../../tokens/builders/registry.ts';

/**
 * Loads the operator's builders: `modules` has the path of an ES module by the name that tasks call its builder; a task may name the
 * path as well, as it stands here, and no other. Relative paths are below the working directory. Rejects with `setup_failed` for a
 * module that cannot be loaded or makes no builder, and for a name that is taken.
 */
export async function loadBuilders(modules: Readonly<Record<string, string>>): Promise<BuilderRegistry> {
  const builders = new Map<string, Builder>();
  for (const [name, path] of Object.entries(modules)) {
    const builder = customBuilder(name, `builders.${name}: ${path}`, await load(name, path));
    builders.set(name, builder);
    if (!(path in modules) && !builders.has(path)) builders.set(path, builder);
  }
  return builderRegistry(builders);
}

async function load(name: string, path: string): Promise<Record<string, unknown>> {
  try {
    return (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>;
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    throw new FloeError(
      'setup_failed',
      `builders.${name}: ${path} cannot be loaded: ${message}`,
      { name, path },
      error,
    );
  }
}
