export const row = {
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
  compaction: {
    when: { system: { contains: 'state_snapshot' } },
    window: 65_536,
    parts: 8,
    partBytes: 40_000,
  },
  lengthStop: { reaction: 'ends' },
};
