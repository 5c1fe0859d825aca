import { readFileSync } from 'node:fs';
import { entryPath, shellWord } from '@floe-rl/core';
import type { Row, ToolCall } from '../row.ts';

/**
 * Path in the sandbox of the compiled agent `loop.ts`, which is a single file and needs no packages. Because of the extension .mjs, Node
 * loads the file as an ES module.
 */
const AGENT_FILE = '.agent/loop.mjs';

const shell = (command: string): ToolCall => ({ tool: 'shell', arguments: { command } });

export const shellRow: Row = {
  harness: 'shell',
  variants: [{ label: 'shell', settings: {} }],
  agent: (dialect) => ({ custom_shell: `node ${AGENT_FILE} ${dialect}` }),
  files: () => ({ [AGENT_FILE]: readFileSync(entryPath(import.meta.url, '../agents/loop.js'), 'utf8') }),
  calls: {
    shell,
    read: (path) => shell(`cat ${shellWord(path)}`),
    edit: (path, from, to) => shell(`sed -i ${shellWord(`s/${from}/${to}/`)} ${shellWord(path)}`),
    write: (path, content) => shell(`printf %s ${shellWord(content)} > ${shellWord(path)}`),
    image: (path) => ({ tool: 'view_image', arguments: { path } }),
    subagent: null,
  },
  lengthStop: { reaction: 'ends' },
  skips: {
    subagent: 'the script that represents any agent, [loop.ts](../../verify/matrix/agents/loop.ts), has no sub-agents',
    compaction: 'the script that represents any agent, [loop.ts](../../verify/matrix/agents/loop.ts), never summarises',
  },
};
