import { z } from 'zod';
import { defineAgent, type Episode, type EpisodeResult, type ReplyReward } from '../loop/episode.ts';
import { scoreIn } from '../loop/score-in.ts';
import type { Conversation } from '../tools/conversation.ts';

const ROLES = ['solver', 'critic', 'judge'] as const;
type Role = (typeof ROLES)[number];

const PROMPTS: Readonly<Record<Role, string>> = {
  solver: 'Solve the task. End your reply with your answer.',
  critic: 'You review the answer of another agent. Say briefly what is wrong or missing, or that nothing is.',
  judge: 'You judge the answer of another agent. Reply with a JSON object alone: {"score": a number from 0 to 1}.',
};

const seatSchema = z.strictObject({
  name: z
    .string()
    .regex(/^(?!main$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/, 'must be letters, digits, "_", "-", and not main'),
  role: z.enum(ROLES),
  prompt: z.string().min(1).optional().describe('system prompt of the seat; default: that of its role'),
  train: z.boolean().optional().describe('whether its replies are trained; default: true, for a judge false'),
  engine_pool: z
    .string()
    .min(1)
    .optional()
    .describe("pool of engines of the seat, one of the task's `engine.extra_pools`; default: that of the task"),
});

const settingsSchema = z.strictObject({
  seats: z
    .array(seatSchema)
    .max(16)
    .refine((seats) => new Set(seats.map(({ name }) => name)).size === seats.length, 'must have different names')
    .refine((seats) => seats.some(({ role }) => role === 'solver'), 'must have a solver')
    .refine((seats) => seats.filter(({ role }) => role === 'judge').length <= 1, 'must have at most one judge')
    .refine(
      ([first]) => first?.engine_pool === undefined,
      'the first seat uses engine.pool of the task, so it must have no engine_pool',
    ),
  rounds: z.int().min(0).max(16).default(1).describe('number of rounds in which critics comment and solvers revise'),
  max_score: z.number().gt(0).default(1).describe('largest score of the judge; the smallest is 0'),
});
type Settings = z.infer<typeof settingsSchema>;

/** A seat with its conversation, and what it has replied. */
type Seat = Settings['seats'][number] & {
  readonly conversation: Conversation;
  readonly isTrained: boolean;
  readonly completionIds: string[];
};

/** Number of replies in which the judge may give a score. */
const JUDGE_TRIES = 2;

/** Lets several seats work on the task: solvers answer, critics comment on each answer, solvers revise, and a judge scores the last answers. */
export const multiAgent = defineAgent({
  name: 'multi',
  description: 'solvers, critics and a judge, each with its own conversation and score',
  settings: settingsSchema,
  enginePools: ({ seats }) => seats.flatMap(({ engine_pool: pool }) => (pool === undefined ? [] : [pool])),
  run: async (episode): Promise<EpisodeResult> => {
    const { rounds, max_score: maxScore } = episode.settings;
    const seats = episode.settings.seats.map((seat, index) => openSeat(episode, seat, index));
    const having = (role: Role): Seat[] => seats.filter((seat) => seat.role === role);
    const solvers = having('solver');
    const answers = new Map<Seat, string>();
    for (const solver of solvers) answers.set(solver, await say(solver, episode.instruction));
    for (let round = 0; round < rounds && having('critic').length > 0; round++) {
      for (const solver of solvers) {
        const comments: string[] = [];
        for (const critic of having('critic')) {
          comments.push(await say(critic, review(episode.instruction, answers.get(solver) ?? '')));
        }
        answers.set(
          solver,
          await say(solver, `Comments on your answer:\n\n${comments.join('\n\n')}\n\nAnswer once more.`),
        );
      }
      episode.count('rounds');
    }

    const [judge] = having('judge');
    const answer = answers.get(solvers[0] as Seat) ?? '';
    if (judge === undefined) {
      const end = { status: 'finished', score: null, reason: 'the seats have ended' } as const;
      return { ...end, answer, replyRewards: rewards(seats, {}) };
    }
    const seatScores: Record<string, number> = {};
    for (const solver of solvers) {
      const score = await judged(judge, review(episode.instruction, answers.get(solver) ?? ''), maxScore);
      if (score === null) return { status: 'failed', score: null, reason: `the judge ${judge.name} gave no score` };
      seatScores[solver.name] = score;
    }
    const mean = Object.values(seatScores).reduce((sum, score) => sum + score, 0) / solvers.length;
    // Critics help all solvers alike, so they have the mean of their scores.
    for (const critic of having('critic')) seatScores[critic.name] = mean;
    const best = [...solvers].sort((a, b) => (seatScores[b.name] ?? 0) - (seatScores[a.name] ?? 0))[0];
    return {
      status: 'finished',
      score: mean,
      seatScores,
      reason: `the judge ${judge.name} has scored`,
      answer: (best && answers.get(best)) ?? answer,
      replyRewards: rewards(seats, seatScores),
    };
  },
});

/** Opens the conversation of a seat. The conversation of the first seat is the main one. */
function openSeat({ conversation }: Episode<Settings>, seat: Settings['seats'][number], index: number): Seat {
  const isTrained = seat.train ?? seat.role !== 'judge';
  const pool = seat.engine_pool === undefined ? {} : { enginePool: seat.engine_pool };
  const own = index === 0 ? conversation : conversation.fork(seat.name, { messages: [], train: isTrained, ...pool });
  own.push({ role: 'system', content: seat.prompt ?? PROMPTS[seat.role] });
  return { ...seat, conversation: own, isTrained, completionIds: [] };
}

async function say({ conversation, isTrained, completionIds }: Seat, text: string): Promise<string> {
  conversation.push({ role: 'user', content: text });
  const { message, completionId } = await conversation.ask({ train: isTrained });
  completionIds.push(completionId);
  return message.content ?? '';
}

function review(instruction: string, answer: string): string {
  return `The task:\n${instruction}\n\nThe answer:\n${answer}`;
}

/** Returns the score of the judge; `null` when its replies have none. */
async function judged(judge: Seat, text: string, maxScore: number): Promise<number | null> {
  let reply = await say(judge, text);
  for (let tries = 1; ; tries++) {
    const score = scoreIn(reply);
    if (score !== null && score >= 0 && score <= maxScore) return score;
    if (tries === JUDGE_TRIES) return null;
    reply = await say(judge, `Reply with {"score": a number from 0 to ${maxScore}} and nothing else.`);
  }
}

/** Returns the rewards of all replies: the last one of each seat has the score of its seat. */
function rewards(seats: readonly Seat[], scores: Readonly<Record<string, number>>): ReplyReward[] {
  return seats.flatMap(({ name, completionIds }) =>
    completionIds.map((completionId, index) => ({
      completionId,
      seat: name,
      reward: index === completionIds.length - 1 ? (scores[name] ?? 0) : 0,
    })),
  );
}
