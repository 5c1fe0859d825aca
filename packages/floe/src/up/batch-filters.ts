import { createContext, Script } from 'node:vm';
import { FloeError } from '@floe-rl/core';
import type { BatchFilter } from '@floe-rl/core/protocol';
import { importModule } from '@floe-rl/node';

/**
 * Loads the modules that the setting `batch_filters` names. Throws `setup_failed` with the path of a module that cannot be loaded or does not
 * export a function `acceptGroup`.
 */
export async function loadBatchFilters(paths: Readonly<Record<string, string>>): Promise<Map<string, BatchFilter>> {
  const filters = new Map<string, BatchFilter>();
  for (const [name, path] of Object.entries(paths)) filters.set(name, await loadFilter(name, path));
  return filters;
}

async function loadFilter(name: string, path: string): Promise<BatchFilter> {
  const key = `batch_filters.${name}`;
  const { acceptGroup } = await importModule(key, path);
  if (typeof acceptGroup !== 'function') {
    throw new FloeError('setup_failed', `${key}: ${path} does not export a function acceptGroup`, { key, path });
  }
  return (group) => {
    const decision: unknown = callWithin(() => acceptGroup(group));
    if (typeof decision !== 'object' || decision === null || !('then' in decision)) return decision === true;
    // If nothing handles the rejection of this promise, the server process ends.
    Promise.resolve(decision).catch(() => {});
    throw new FloeError(
      'setup_failed',
      `${key}: acceptGroup of ${path} returned a promise; it must return true or false`,
    );
  };
}

/** Longest time of one call of a filter in milliseconds. The server does nothing else meanwhile. */
const CALL_LIMIT_MS = 1_000;
const context = createContext({ call: null });
const script = new Script('call()');

/** Calls a function, and throws when it does not return in time, so that a filter with an endless loop does not stop the server. */
function callWithin(call: () => unknown): unknown {
  context.call = call;
  return script.runInContext(context, { timeout: CALL_LIMIT_MS });
}
