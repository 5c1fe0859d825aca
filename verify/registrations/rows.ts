/** An agent with two conversations that have nothing in common, which become two traces. */
const TWO_CONVERSATIONS = ['Name a river.', 'Name a mountain.'].map(modelCall).join(' && ');
/** An agent that does not end after its first reply. */
const ENDLESS = `${modelCall('Name a lake.')} && sleep 600`;

/** Returns a shell command that makes one model call. */
function modelCall(text: string): string {
  const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: text }] });
  return (
    'curl -sSf "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" ' +
    `-H 'content-type: application/json' -d '${body}'`
  );
}

/** The task template of all rows. The agent and its time limit are fields of the row. */
export const TASK = {
  instruction: '{{row.prompt}}',
  agent: '{{row.agent}}',
  budgets: '{{row.budgets}}',
  runtime: {
    prepare: [
      {
        type: 'write_file',
        target: 'total.py',
        content:
          'def total(values):\n    result = {{row.start}}\n    for value in values:\n        result += value\n    return result\n',
      },
      {
        type: 'write_file',
        target: 'test_total.py',
        content: "from total import total\nassert total([1, 2, 3]) == 6, 'wrong'\nprint('OK')\n",
      },
    ],
  },
  evaluator: {
    strategy: 'script',
    config: {
      command: `python3 test_total.py && r=1 || r=0; echo "{\\"reward\\": $r, \\"components\\": {\\"tests\\": $r}}" > "$FLOE_REWARD"`,
      carry: 'paths',
      paths: ['total.py'],
    },
  },
};

/**
 * The rows: an agent with several turns and tool calls, an agent whose session has two traces, and an agent whose session ends with the policy
 * `mask`. The simulated engine has a scenario for the first agent.
 */
export const ROWS = [
  { name: 'repair', prompt: 'Repair the failing test test_total.py.', start: 1, agent: { harness: 'pi' }, budgets: {} },
  {
    name: 'two_conversations',
    prompt: 'Name things.',
    start: 0,
    agent: { harness: 'shell', custom_shell: TWO_CONVERSATIONS },
    budgets: {},
  },
  {
    name: 'timeout',
    prompt: 'Name a lake.',
    start: 0,
    agent: { harness: 'shell', custom_shell: ENDLESS },
    budgets: { agent: 3 },
  },
] as const;
