import type { Row } from '../row.ts';

export const qwenCodeRow: Row = {
  harness: 'qwen_code',
  variants: [{ label: 'qwen_code', settings: {} }],
  settingsForImages: { vision: true },
  calls: {
    shell: (command) => ({ tool: 'run_shell_command', arguments: { command, is_background: false } }),
    read: (path) => ({ tool: 'read_file', arguments: { file_path: `/work/${path}` } }),
    edit: (path, from, to) => ({
      tool: 'edit',
      arguments: { file_path: `/work/${path}`, old_string: from, new_string: to },
    }),
    write: (path, content) => ({ tool: 'write_file', arguments: { file_path: `/work/${path}`, content } }),
    image: (path) => ({ tool: 'read_file', arguments: { file_path: `/work/${path}` } }),
    subagent: (prompt) => ({
      tool: 'agent',
      arguments: { description: 'Write a file', prompt, subagent_type: 'general-purpose' },
    }),
  },
  compaction: {
    when: { system: { contains: 'state_snapshot' } },
    window: 98_304,
    parts: 10,
    partBytes: 20_000,
  },
  lengthStop: { reaction: 'ends' },
  skips: {
    'malformed_call/anthropic':
      'over Messages, Qwen Code drops a reply whose arguments are not a JSON object, retries, and gives up after the fifth: https://github.com/QwenLM/qwen-code/pull/9013',
  },
};
