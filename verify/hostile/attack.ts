import type { Outcome, TaskRequestInput } from '@floe-rl/core/schema';

/** The classes of attacks, in the order in which the report lists them. */
export const ATTACK_CLASSES = ['graders', 'sandbox', 'bombs', 'proxy', 'reward'] as const;
export type AttackClass = (typeof ATTACK_CLASSES)[number];

/** The result that the session of an attack must have if floe withstood the attack. */
export type Expectation = {
  /** The outcomes that are allowed. */
  readonly outcomes: readonly Outcome[];
  readonly reward: number | null;
  /** The allowed values of `reward_details.failure`; absent when the attack does not determine it. */
  readonly failures?: readonly string[];
  /** Texts that the end of the agent's standard output must contain. */
  readonly says?: readonly string[];
  /** Number of recorded model calls; absent when the attack does not determine it. */
  readonly completions?: number;
};

/** One attack: a task whose agent, or whose tested code, is hostile. */
export type Attack = {
  /** What the agent does, as a phrase that completes "an agent that …". It is unique. */
  readonly name: string;
  readonly kind: AttackClass;
  /** Shell command that runs after the agent's first model call. */
  readonly command: string;
  /** Perl program that `command` finds in the variable `PROGRAM`. */
  readonly program?: string;
  readonly holds: Expectation;
  /** Fields that override fields of the attack's task. */
  readonly task?: Partial<Pick<TaskRequestInput, 'artifacts' | 'budgets' | 'evaluator' | 'timeout_seconds'>>;
  /** Fields that override limits of the sandbox, and its image. */
  readonly runtime?: Partial<NonNullable<TaskRequestInput['runtime']>>;
  readonly maxTurns?: number;
  /** Whether `command` makes the first model call itself. Otherwise the agent makes a model call before it runs `command`. */
  readonly makesOwnCall?: boolean;
};

/** The parts of the host and of the service that attacks try to reach. The verification itself has created all of them. */
export type Target = {
  /**
   * Value of an environment variable that all processes of this run have. Processes with this value that are left at the end are a finding.
   */
  readonly mark: string;
  /** Texts that no session may learn. They are in files, in a keyring, in an environment and in another session. */
  readonly secrets: readonly string[];
  /** Directory on the host that every user may read, with the file `secret`. */
  readonly secretDir: string;
  /** State directory of the gateway node. */
  readonly stateDir: string;
  /** Directory of the whole service, with the server's database. */
  readonly serviceDir: string;
  /** Ids of floe's processes: the server, the gateway and its spawn helper. */
  readonly pids: readonly number[];
  /** TCP ports on the host's loopback interface by the name of the service that listens there. */
  readonly ports: Readonly<Record<string, number>>;
  /** Name of a socket in the host's abstract namespace, without the leading NUL. */
  readonly abstractSocket: string;
  /** Key of a session that runs during all attacks; `null` when it cannot be read on this machine. */
  readonly liveKey: string | null;
  /** Key of a session that has ended. */
  readonly endedKey: string;
  /** Directory with a small root file system for attacks that damage their programs. */
  readonly image: string;
};

/** The word that an honest agent writes into the file `answer`, and that the tests expect in it. */
export const RIGHT_ANSWER = 'right';

/** Returns the shell command of one model call with curl. */
export function modelCall(text = 'Say something.', options = ''): string {
  const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: text }] });
  return `curl -sf -m 120 ${options} "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' -d '${body}' > /dev/null`;
}

const COMMIT = 'git -c user.name=floe -c user.email=floe@localhost commit -q -m start';

/** Actions that prepare the repository in which honest and hostile agents work. */
const PREPARE = [
  { type: 'write_file', target: 'answer', content: 'wrong\n' },
  { type: 'write_file', target: 'solution.sh', content: ':\n' },
  { type: 'write_file', target: 'tests/check.sh', content: `[ "$(cat answer)" = ${RIGHT_ANSWER} ]\n` },
  { type: 'exec', command: `git init -q . && git add -A && ${COMMIT}` },
] as const;

/** Command of the tests. It first runs `solution.sh`, which the agent may have replaced, and then reports whether the answer is right. */
const TEST_COMMAND = 'sh ./solution.sh; if sh tests/check.sh; then echo "PASSED answer"; else echo "FAILED answer"; fi';

/** Returns an evaluator that runs the tests in a fresh runtime, with the given fields of its configuration. */
export function graded(config: Record<string, unknown> = {}, refresh: boolean | null = null) {
  return {
    strategy: 'test_on_output',
    refresh_runtime: refresh,
    config: {
      test_command: TEST_COMMAND,
      expected_output_json: { answer: 'PASSED' },
      test_timeout: 60,
      apply_timeout: 30,
      ...config,
    },
  };
}

export type SessionTask = Pick<Attack, 'command' | 'program' | 'task' | 'runtime' | 'maxTurns' | 'makesOwnCall'>;

/** Returns the task of a hostile or honest agent, whose sandbox has small limits. */
export function taskOf(id: string, mark: string, agent: SessionTask): TaskRequestInput {
  const env = { FLOE_FAULT_MARK: mark, ...(agent.program === undefined ? {} : { PROGRAM: agent.program }) };
  const before = agent.makesOwnCall ? '' : `${modelCall()} || exit 90\n`;
  return {
    task_id: id,
    instruction: `Write the word ${RIGHT_ANSWER} into the file answer.`,
    timeout_seconds: 300,
    max_attempts: 3,
    agent: {
      harness: 'shell',
      custom_shell: `${before}${agent.command}`,
      env,
      ...(agent.maxTurns === undefined ? {} : { max_turns: agent.maxTurns }),
    },
    evaluator: graded(),
    ...agent.task,
    runtime: {
      backend: 'bubblewrap',
      memory_mb: 256,
      storage_mb: 200,
      max_processes: 64,
      max_file_mb: 128,
      cpus: 0.5,
      env: { FLOE_FAULT_MARK: mark },
      prepare: [...PREPARE],
      ...agent.runtime,
    },
  };
}
