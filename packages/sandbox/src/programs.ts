import { entryPath } from '@floe-rl/core';

/**
 * The programs of this package that run as processes of their own. Each is bundled into one file of `dist/programs/` that imports only modules
 * of Node, because a sandbox contains nothing else; `bundle.js` has the list of their sources.
 *
 * - `box-server`: runs commands and tools in a sandbox
 * - `mcp-server`: offers the tools of a sandbox over MCP
 * - `browser`: operates a browser in a sandbox
 * - `proxy-relay`: connects a sandbox without network to the model proxy
 * - `spawn-helper`: starts all child processes of a node
 */
export type ProgramName = 'box-server' | 'mcp-server' | 'browser' | 'proxy-relay' | 'spawn-helper';

/** Returns the path of a program on this machine. */
export function programPath(name: ProgramName): string {
  return entryPath(import.meta.url, `./programs/${name}.js`);
}
