import type { Row, ToolCall } from '../row.ts';
import { SUBAGENT_MARK } from '../script.ts';

const shell = (cmd: string): ToolCall => ({ tool: 'exec_command', arguments: { cmd } });

export const codexRow: Row = {
  harness: 'codex',
  variants: [{ label: 'codex', settings: {} }],
  calls: {
    shell,
    // Codex offers no file tools to a model that it does not know, so files are read and written by shell commands.
    read: (path) => shell(`cat ${path}`),
    edit: (path, oldText, newText) => shell(`sed -i 's/${oldText}/${newText}/' ${path}`),
    write: (path, content) => shell(`printf '%s' '${content}' > ${path}`),
    image: (path) => ({ tool: 'view_image', arguments: { path: `/work/${path}` } }),
    subagent: (message) => ({ tool: 'multi_agent_v1__spawn_agent', arguments: { message } }),
  },
  // The first user message of every thread is codex's own message about the environment, so the last one is checked.
  subagentWhen: { last_user: { contains: SUBAGENT_MARK } },
  compaction: {
    when: { last_user: { contains: 'CONTEXT CHECKPOINT COMPACTION' } },
    window: 65_536,
    parts: 10,
    partBytes: 25_000,
  },
  lengthStop: { reaction: 'ends' },
  skips: {},
};
