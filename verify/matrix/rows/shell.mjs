import { readFileSync } from 'node:fs';

/** An agent of one file, which the sandbox gets beside its task; `shell` runs any command, and this is one. */
const SCRIPT = readFileSync(new URL('../agents/loop.mjs', import.meta.url), 'utf8');

const shell = (command) => ({ tool: 'shell', arguments: { command } });
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export const row = {
  harness: 'shell',
  variants: [{ label: 'shell', settings: {} }],
  agent: (dialect) => ({ custom_shell: `node .agent/loop.mjs ${dialect}` }),
  files: { '.agent/loop.mjs': SCRIPT },
  calls: {
    shell,
    read: (path) => shell(`cat ${quoted(path)}`),
    edit: (path, from, to) => shell(`sed -i ${quoted(`s/${from}/${to}/`)} ${quoted(path)}`),
    write: (path, content) => shell(`printf %s ${quoted(content)} > ${quoted(path)}`),
    image: (path) => ({ tool: 'view_image', arguments: { path } }),
    subagent: null,
  },
  lengthStop: { reaction: 'ends' },
  skips: {
    subagent: 'the script that stands for any agent, [loop.mjs](../matrix/agents/loop.mjs), has no sub-agents',
    compaction: 'the script that stands for any agent, [loop.mjs](../matrix/agents/loop.mjs), never summarises',
  },
};
