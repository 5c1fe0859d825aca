import type { Outcome, SessionResult, TaskRequestInput } from '@floe-rl/core/schema';
import { modelCall } from '../hostile/attack.ts';

/** The classes of cheats, in the order in which the table lists them. */
export const CHEAT_CLASSES = ['history', 'tests', 'environment', 'files', 'programs', 'answers', 'service'] as const;
export type CheatClass = (typeof CHEAT_CLASSES)[number];

/** The work that an agent gets, and how it is graded. */
export type Work = {
  readonly prepare: NonNullable<NonNullable<TaskRequestInput['runtime']>['prepare']>;
  readonly evaluator: NonNullable<TaskRequestInput['evaluator']>;
  /** Shell command of an agent that does the work. */
  readonly solve: string;
  /** Reply of the policy that does the work; absent where the evaluator does not read it. */
  readonly answer?: string;
  readonly metadata?: Record<string, unknown>;
  readonly task?: Partial<Pick<TaskRequestInput, 'budgets'>>;
  readonly network?: 'none' | 'host';
  /** Whether the agent's sandbox and the evaluator's fresh sandbox may start from the same snapshot of prepared files. */
  readonly sharesPrepared?: boolean;
};

/** An agent that tries to get a reward without doing its work. */
export type Cheat = {
  /** What the agent does, as a phrase that completes "an agent that …". It is unique. */
  readonly name: string;
  readonly kind: CheatClass;
  readonly work: Work;
  /** Shell command of the agent, which runs after its first model call. */
  readonly command: string;
  /** The policy's reply to the first model call; absent where the evaluator does not read it. */
  readonly says?: string;
  /** The outcome of the session, `completed` unless given. With another outcome, the cheat might not have run to its end. */
  readonly outcome?: Outcome;
  /**
   * Whether the result shows the cheat in a field that a trainer can filter by. A flagged cheat may get a reward other than 0. Absent for a
   * cheat that must have the reward 0.
   */
  readonly isFlagged?: (result: SessionResult) => boolean;
  /** What an honest agent does that resembles the cheat, in addition to its work. */
  readonly alsoHonest?: string;
  /**
   * The same work without the protection that stops this cheat, so that the cheat gets the reward 1. It shows that the cheat works. Absent
   * where no setting of a task turns the protection off.
   */
  readonly unprotected?: Work;
};

/** Parts of this machine that cheats use. */
export type Surroundings = {
  /** Folder on the host with the tests of the work that the evaluator `harbor` grades. */
  readonly testsDir: string;
  /** A library on the host that forges a report when a program loads it. */
  readonly library: string;
};

/** A session of a cheat or of an honest agent. */
export type SessionPlan = {
  readonly id: string;
  readonly work: Work;
  readonly command: string;
  readonly says: string | null;
};

/** Names the variable with the address of a web server on the host that serves a correct solution. */
export const WEB_VARIABLE = 'CHEAT_WEB';

/** What the sessions of one back end have in common. */
export type Place = {
  readonly backend: NonNullable<NonNullable<TaskRequestInput['runtime']>['backend']>;
  readonly image: string;
  readonly mark: string;
  readonly webUrl: string;
};

/** Returns the prompt of a session. The simulated engine recognises the session's model calls by this text. */
export function promptOf({ id }: Pick<SessionPlan, 'id'>): string {
  return `Do the work ${id}.`;
}

export function taskOf({ id, work, command, says }: SessionPlan, place: Place): TaskRequestInput {
  const call = modelCall(says === null ? 'Say something.' : promptOf({ id }));
  return {
    task_id: id,
    instruction: 'Do the work.',
    timeout_seconds: 300,
    max_attempts: 3,
    agent: {
      harness: 'shell',
      custom_shell: `${call} || exit 90\n${command}`,
      env: { FLOE_FAULT_MARK: place.mark, [WEB_VARIABLE]: place.webUrl },
    },
    artifacts: { collect: false },
    evaluator: work.evaluator,
    metadata: work.metadata ?? {},
    ...work.task,
    runtime: {
      backend: place.backend,
      image: place.image,
      workdir: '/work',
      memory_mb: 512,
      storage_mb: 128,
      max_processes: 64,
      max_output_mb: 2,
      network: work.network ?? 'none',
      env: { FLOE_FAULT_MARK: place.mark },
      prepare: work.prepare,
      share_prepared: work.sharesPrepared === true,
    },
  };
}
