import type { Row } from '../row.ts';

export const opencodeRow: Row = {
  harness: 'opencode',
  variants: [{ label: 'opencode', settings: {} }],
  settingsForImages: { vision: true },
  calls: {
    shell: (command) => ({ tool: 'bash', arguments: { command } }),
    read: (path) => ({ tool: 'read', arguments: { filePath: `/work/${path}` } }),
    edit: (path, oldString, newString) => ({
      tool: 'edit',
      arguments: { filePath: `/work/${path}`, oldString, newString },
    }),
    write: (path, content) => ({ tool: 'write', arguments: { filePath: `/work/${path}`, content } }),
    image: (path) => ({ tool: 'read', arguments: { filePath: `/work/${path}` } }),
    subagent: (prompt) => ({
      tool: 'task',
      arguments: { description: 'Write a file', prompt, subagent_type: 'general' },
    }),
  },
  compaction: {
    when: { system: { contains: 'You are a context summarization agent' } },
    window: 65_536,
    parts: 10,
    partBytes: 30_000,
  },
  lengthStop: { reaction: 'ends' },
};
