import type { SessionResult } from '@floe-rl/core/schema';
import { parseScenarios } from '@floe-rl/sim';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { itIf } from '../skip.ts';
import { startTestStack, type TestStack, workingBackends } from './stack.ts';

const JUNK = `/usr/bin/python3 - <<'END'
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
server = os.getppid()
while b'box-server' not in open(f'/proc/{server}/cmdline', 'rb').read():
    server = int(open(f'/proc/{server}/stat').read().rsplit(')', 1)[1].split()[1])
pidfd = libc.syscall(434, server, 0)
for fd in range(3, 64):
    try:
        if not os.readlink(f'/proc/{server}/fd/{fd}').startswith('socket:'): continue
    except OSError: continue
    own = libc.syscall(438, pidfd, fd, 0)
    if own >= 0: os.write(own, struct.pack('>II', 5, 0) + b'floe!')
END
sleep 60`;

/** Commands that damage the box server of their tools, which is the parent process of the shell. */
const DAMAGE = {
  'end the box server': 'kill -9 $PPID; sleep 60',
  'stop the box server': 'kill -STOP $PPID; sleep 60',
  'write junk as the box server': JUNK,
  'end every process of the sandbox': 'kill -9 -1; sleep 60',
} as const;
const ISOLATED: readonly string[] = ['write junk as the box server', 'end every process of the sandbox'];

const scenarios = parseScenarios(
  {
    scenarios: Object.entries(DAMAGE).map(([contains, command]) => ({
      ...{ name: contains.replaceAll(' ', '_'), match: { contains } },
      rules: [
        { when: { assistant_turns: 0 }, reply: [{ call: { tool: 'bash', arguments: { command: 'echo ready' } } }] },
        { reply: [{ call: { tool: 'bash', arguments: { command } } }] },
      ],
    })),
  },
  'the test',
);

const backends = await workingBackends();

describe.each(backends)('an agent whose commands damage its tools in a sandbox of %s', (backend) => {
  let stack: TestStack;
  beforeAll(async () => {
    stack = await startTestStack({ scenarios, node: { default_backend: backend } });
  });
  afterAll(() => stack.close());

  async function resultOf(instruction: string): Promise<SessionResult | undefined> {
    const [result] = await stack.run({
      instruction,
      agent: { harness: 'floe', settings: { agent: 'tool_call', tools: ['bash'] } },
      evaluator: {
        strategy: 'script',
        refresh_runtime: false,
        config: { command: 'echo 0.25 >"$FLOE_REWARD"' },
      },
    });
    return result;
  }

  for (const instruction of Object.keys(DAMAGE)) {
    const reason = backend === 'local' && ISOLATED.includes(instruction) ? 'local isolates nothing' : null;
    itIf(reason, `is to blame, and is graded, when they ${instruction}`, async () => {
      expect(await resultOf(instruction)).toMatchObject({
        ...{ outcome: 'agent_error', attempt: 1, reward: 0.25 },
        error: { code: 'harness_failed', stage: 'agent', details: { box: 'lost' } },
        agent: { turns: 2 },
      });
    });
  }
});
