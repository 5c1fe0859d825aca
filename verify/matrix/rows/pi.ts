import type { Row } from '../row.ts';

export const piRow: Row = {
  harness: 'pi',
  variants: [{ label: 'pi', settings: {} }],
  settingsForImages: { vision: true },
  calls: {
    shell: (command) => ({ tool: 'bash', arguments: { command } }),
    read: (path) => ({ tool: 'read', arguments: { path } }),
    edit: (path, oldText, newText) => ({ tool: 'edit', arguments: { path, edits: [{ oldText, newText }] } }),
    write: (path, content) => ({ tool: 'write', arguments: { path, content } }),
    image: (path) => ({ tool: 'read', arguments: { path } }),
    subagent: null,
  },
  compaction: {
    when: { system: { contains: 'context summarization assistant' } },
    window: 65_536,
    parts: 8,
    partBytes: 40_000,
  },
  lengthStop: { reaction: 'ends' },
  skips: {
    subagent:
      'pi has no sub-agents: [its four tools](https://github.com/earendil-works/pi/tree/main/packages/coding-agent)',
  },
};
