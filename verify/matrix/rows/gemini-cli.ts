import type { Row } from '../row.ts';

export const geminiCliRow: Row = {
  harness: 'gemini_cli',
  variants: [{ label: 'gemini_cli', settings: {} }],
  calls: {
    shell: (command) => ({ tool: 'run_shell_command', arguments: { command, description: 'Runs a command.' } }),
    read: (path) => ({ tool: 'read_file', arguments: { file_path: path } }),
    edit: (path, from, to) => ({
      tool: 'replace',
      arguments: { file_path: path, instruction: `Replace ${from} by ${to}.`, old_string: from, new_string: to },
    }),
    write: (path, content) => ({ tool: 'write_file', arguments: { file_path: path, content } }),
    image: (path) => ({ tool: 'read_file', arguments: { file_path: path } }),
    subagent: (prompt) => ({ tool: 'invoke_agent', arguments: { agent_name: 'generalist', prompt } }),
  },
  finishSubagent: (text) => [{ call: { tool: 'complete_task', arguments: { result: text } } }],
  lengthStop: { reaction: 'ends' },
  skips: {
    compaction:
      'Gemini CLI summarises only what is before a later message of the user, and a session has one: https://github.com/google-gemini/gemini-cli/pull/8661',
  },
};
