import { findEnvironment } from '@floe-rl/agents';
import type { TaskRequestInput } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { harnessDir } from '#floe/commands/home';
import { playedScenarios, type ScenarioInput } from '#floe/testing/index';

/** Text of a hostile agent: markup that a browser would run, and escapes that would change the terminal or the direction of the text. */
const HOSTILE = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>\u001b[31mred\u202egnp.exe';

/** The hostile text as the page must show it. */
export const VISIBLE_HOSTILE = HOSTILE.replace('\u001b', '\u241b').replace('\u202e', '\\u202e');

const GAME = { seed: 3, mark: 'Game 3.' };

/** Returns the replies of the simulated policy for the tasks of {@link TASKS}. */
export async function scenarios(): Promise<ScenarioInput[]> {
  return [
    {
      name: 'hostile',
      match: { contains: 'Write something hostile.' },
      rules: [{ reply: [{ think: { text: 'They want markup.' } }, { text: HOSTILE }] }],
    },
    ...(await playedScenarios({ environment: findEnvironment('frozen_lake'), config: {}, ...GAME })),
  ];
}

const ask = (text: string): string =>
  `curl -sSf $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '${JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: text }] })}'`;

const shell = (command: string): TaskRequestInput['agent'] => ({ harness: 'shell', custom_shell: command });

/** Tasks whose sessions show every kind of content: several turns, a failure, hostile output, a group without an advantage. */
export const TASKS: Readonly<Record<'hostile' | 'failing' | 'equal' | 'turns', TaskRequestInput>> = {
  hostile: { instruction: '', agent: shell(ask('Write something hostile.')), max_attempts: 1 },
  failing: { instruction: '', agent: shell("echo 'cannot find the repository' >&2; exit 3"), max_attempts: 1 },
  equal: {
    instruction: '',
    num_samples: 4,
    agent: shell(ask('Say hello.')),
    evaluator: { strategy: 'session_completed' },
    max_attempts: 1,
  },
  turns: {
    instruction: '',
    agent: { harness: 'floe', system_prompt: GAME.mark, settings: { agent: 'gym' } },
    environment: { type: 'frozen_lake', seed: GAME.seed },
    evaluator: { strategy: 'environment' },
    runtime: { backend: 'none' },
    max_attempts: 1,
  },
};

export const ENDLESS_TASK: TaskRequestInput = {
  instruction: '',
  agent: shell(`${ask('Write something hostile.')}; sleep 600`),
  max_attempts: 1,
};

/** Harness programs. Their sessions are checked where the programs are installed. */
const PROGRAMS = ['pi', 'codex', 'qwen_code', 'mini_swe_agent'] as const;
const PROGRAM_SAMPLES = 4;

/** Returns tasks with 200 sessions that need no harness program, and tasks for each harness program that is installed. */
export async function manyTasks(): Promise<TaskRequestInput[]> {
  const plain = [TASKS.equal, TASKS.turns].map((task) => ({ ...task, num_samples: 100 }));
  const installed: TaskRequestInput[] = [];
  for (const harness of PROGRAMS) {
    if (!(await harnessStatus(harness, harnessDir())).installed) {
      console.log(`skipped ${harness}: it is not installed`);
      continue;
    }
    const metadata = { harness };
    installed.push({ instruction: 'Say hello.', num_samples: PROGRAM_SAMPLES, agent: { harness }, metadata });
  }
  return [...plain, ...installed];
}
