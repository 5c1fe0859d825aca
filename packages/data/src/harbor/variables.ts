import { unsupported } from './task-file.ts';

/** Matches `${NAME}` and `${NAME:-default}`. */
const TEMPLATE = /\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}/g;

/** Variables of the host that tasks may read, by name. */
export type HostVariables = Readonly<Record<string, string>>;

/**
 * Replaces the templates `${NAME}` and `${NAME:-default}` in the values of a task's variables. Throws `unsupported` for a variable without a
 * default that is not in `host`, because a task may read only the given variables of the host.
 */
export function resolveVariables(
  values: Readonly<Record<string, string>>,
  host: HostVariables,
  where: { readonly file: string; readonly key: string },
): Record<string, string> {
  const resolve = (key: string, value: string): string =>
    value.replaceAll(TEMPLATE, (_template, name: string, fallback: string | undefined) => {
      const found = host[name] ?? fallback;
      if (found !== undefined) return found;
      throw unsupported(
        where.file,
        `${where.key}.${key}`,
        `needs the variable ${name}; pass it with --pass-env ${name}`,
      );
    });
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, resolve(key, value)]));
}
