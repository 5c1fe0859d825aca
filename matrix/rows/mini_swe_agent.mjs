const shell = (command) => ({ tool: 'bash', arguments: { command } });

export const row = {
  harness: 'mini_swe_agent',
  variants: [{ label: 'mini_swe_agent', settings: {} }],
  calls: {
    shell,
    read: (path) => shell(`cat ${path}`),
    edit: (path, from, to) => shell(`sed -i 's/${from}/${to}/' ${path}`),
    write: (path, content) => shell(`printf '%s' '${content}' > ${path}`),
    image: null,
    subagent: null,
  },
  // It ends after three replies in a row without a proper call, so there may be two.
  malformed: { no_object: null },
  lengthStop: { reaction: 'continues' },
  skips: {
    subagent: 'mini-SWE-agent has no sub-agents',
    compaction: 'mini-SWE-agent never summarises: its history is linear',
    image: 'the shell is its only tool, and what it prints reaches the policy as text',
  },
};
