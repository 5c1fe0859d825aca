import { randomBytes } from 'node:crypto';
import { asFloeError, FloeError, fieldError, parseAs, parseJson } from '@floe-rl/core';
import type { ChatMessage } from '@floe-rl/core/schema';
import { z } from 'zod';
import type { EvaluatedSession, Evaluation, Evaluator } from './evaluator.ts';
import { judgeMessages, rubricProblem } from './judge-prompt.ts';

const PATH = 'evaluator.config';
/** Maximum number of JSON values in the judge's reply. */
const MAX_VALUES = 100;
/** Maximum number of characters of the judge's reason in the details. */
const REASON_CHARS = 2_000;
/** Temperature at which a judge is asked again after an unreadable reply. At a low temperature it would repeat that reply. */
const RETRY_TEMPERATURE = 0.7;
/** Smallest excerpt of an agent's text, in characters. A judge cannot be used if its context is too short for this excerpt. */
const MIN_EXCERPT_CHARS = 500;
/** Number of tokens that the rubric and the reply may need in addition to the texts of the agent. */
const MIN_TOKENS_BESIDE_REPLY = 1_000;

const configSchema = z
  .strictObject({
    pool: z.string().min(1).default('judge').describe('engine pool that the judge is sampled from'),
    rubric: z
      .string()
      .min(1)
      .max(100_000)
      .describe(
        'what to judge; {{instruction}}, {{answer}}, {{conversation}} and {{metadata.name}} stand for texts of the session, and one of {{answer}} and {{conversation}} is required',
      ),
    min: z.number().default(0).describe('lowest score; the reward is 0'),
    max: z.number().default(10).describe('highest score; the reward is 1'),
    max_tokens: z.int().min(16).default(2048).describe('longest reply of the judge in tokens'),
    max_session_tokens: z
      .int()
      .min(1)
      .default(100_000)
      .describe('tokens that all calls of one evaluation may use; no call is made that would exceed it'),
    max_chars: z
      .int()
      .min(MIN_EXCERPT_CHARS)
      .max(1_000_000)
      .default(40_000)
      .describe('longest text of the agent in characters; the middle of a longer one is left out'),
    temperature: z.number().min(0).max(2).default(0),
    attempts: z.int().min(1).max(10).default(3).describe('calls until a reply can be read'),
    agent_failures: z
      .array(z.enum(['unreadable_reply']))
      .default([])
      .describe('failures that the agent can cause, which are a reward of 0; any other failure ends as verifier_error'),
  })
  .refine(({ min, max }) => min < max, { path: ['max'], message: 'must be greater than min' })
  .refine((config) => config.max_session_tokens >= config.max_tokens + MIN_TOKENS_BESIDE_REPLY, {
    path: ['max_session_tokens'],
    message: `must be at least ${MIN_TOKENS_BESIDE_REPLY} more than max_tokens`,
  });

type JudgeConfig = z.output<typeof configSchema>;

export type JudgeRequest = {
  readonly pool: string;
  readonly messages: readonly ChatMessage[];
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
  /** Id of the call, unique within the session. */
  readonly callId: string;
  readonly sessionId: string;
};

export type JudgeReply = {
  readonly text: string;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly model: string;
  readonly engineId: string;
};

/** Samples the replies of a judge. Its calls are not part of any trajectory. */
export interface JudgeEngine {
  /**
   * Samples one reply. Rejects with a FloeError when no engine of the pool can answer; `details.context_overflow` is true for a prompt that is
   * too long.
   */
  sample(request: JudgeRequest, signal: AbortSignal): Promise<JudgeReply>;
}

type Spent = { calls: number; prompt_tokens: number; completion_tokens: number };
type Score = { readonly score: number; readonly reason: string | null };

/**
 * Creates the evaluator `judge`: a language model gives a score according to a rubric. The reward is 0 for the lowest score, 1 for the
 * highest, and proportional between them. The prompt says that texts of the agent are only material, but such texts can still persuade the judge.
 */
export function judgeEvaluator(engine: JudgeEngine | null): Evaluator {
  return {
    name: 'judge',
    freshRuntimeByDefault: false,
    checkConfig(config) {
      parseConfig(config);
    },
    async evaluate({ spec, session }, signal) {
      const config = parseConfig(spec.config);
      if (engine === null) throw new FloeError('evaluator_failed', 'judge: this process has no engines');
      return new Judgement(engine, config, session).score(signal);
    },
  };
}

function parseConfig(config: Readonly<Record<string, unknown>>): JudgeConfig {
  const parsed = parseAs(configSchema, config, PATH, PATH);
  const message = rubricProblem(parsed.rubric);
  if (message === null) return parsed;
  const path = `${PATH}.rubric`;
  throw fieldError(path, message);
}

/** The judgement of one session. It counts the tokens of its calls. */
class Judgement {
  private readonly engine: JudgeEngine;
  private readonly config: JudgeConfig;
  private readonly session: EvaluatedSession;
  private readonly spent: Spent = { calls: 0, prompt_tokens: 0, completion_tokens: 0 };
  private readonly nonce = randomBytes(9).toString('hex');
  private maxChars: number;

  constructor(engine: JudgeEngine, config: JudgeConfig, session: EvaluatedSession) {
    this.engine = engine;
    this.config = config;
    this.session = session;
    // A character is rarely more than one token, so the first call does not exceed the limit either.
    this.maxChars = Math.min(config.max_chars, config.max_session_tokens - config.max_tokens);
  }

  async score(signal: AbortSignal): Promise<Evaluation> {
    const { attempts, min, max, agent_failures, max_session_tokens } = this.config;
    let problem = '';
    let last: JudgeReply | null = null;
    for (let attempt = 0; attempt < attempts; attempt++) {
      const used = this.spent.prompt_tokens + this.spent.completion_tokens;
      const next = last === null ? 0 : last.promptTokens + this.config.max_tokens;
      if (used + next > max_session_tokens) {
        throw this.failure(`the limit of ${max_session_tokens} tokens leaves no further call: ${problem}`);
      }
      last = await this.ask(attempt, signal);
      const score = readScore(last.text, min, max);
      if (typeof score === 'string') {
        problem = score;
        continue;
      }
      const details = { ...score, model: last.model, engine_id: last.engineId, judge: { ...this.spent } };
      return { reward: (score.score - min) / (max - min), components: { score: score.score }, details };
    }
    if (!agent_failures.includes('unreadable_reply'))
      throw this.failure(`no reply of ${attempts} can be read: ${problem}`);
    return { reward: 0, details: { failure: 'unreadable_reply', error: problem, judge: { ...this.spent } } };
  }

  /** Samples one reply. A prompt that is too long for the engine is shortened, because the agent can make texts of any length. */
  private async ask(attempt: number, signal: AbortSignal): Promise<JudgeReply> {
    const { pool, max_tokens, temperature } = this.config;
    for (;;) {
      const request = {
        pool,
        messages: this.messages(),
        maxTokens: max_tokens,
        temperature: attempt === 0 ? temperature : Math.max(temperature, RETRY_TEMPERATURE),
        seed: attempt,
        callId: `${this.session.attempt}.judge.${this.spent.calls}`,
        sessionId: this.session.sessionId,
      };
      try {
        this.spent.calls++;
        const reply = await this.engine.sample(request, signal);
        this.spent.prompt_tokens += reply.promptTokens;
        this.spent.completion_tokens += reply.completionTokens;
        return reply;
      } catch (thrown) {
        signal.throwIfAborted();
        const { code, message, details } = asFloeError(thrown);
        if (details.context_overflow !== true || this.maxChars <= MIN_EXCERPT_CHARS) {
          throw this.failure(`the engines of the pool ${pool} did not answer: ${code}: ${message}`, thrown);
        }
        this.maxChars = Math.max(MIN_EXCERPT_CHARS, Math.floor(this.maxChars / 2));
      }
    }
  }

  private messages(): readonly ChatMessage[] {
    const { rubric, min, max } = this.config;
    const { session, maxChars, nonce } = this;
    const messages = judgeMessages({ rubric, session, min, max, maxChars, nonce });
    if (typeof messages === 'string') throw this.failure(`the task has no ${messages}, which the rubric names`);
    return messages;
  }

  private failure(message: string, cause?: unknown): FloeError {
    return new FloeError('evaluator_failed', `judge: ${message}`, { judge: { ...this.spent } }, cause);
  }
}

const FENCED = /^```(?:json)?\n([\s\S]*)\n```$/;

/** Reads the score in a judge's reply, which must be one JSON object. Returns the reason as a text when it cannot be read. */
function readScore(reply: string, min: number, max: number): Score | string {
  const schema = z.strictObject({ score: z.number().min(min).max(max), reason: z.string().default('') });
  const text = reply.trim();
  try {
    const { score, reason } = parseAs(schema, parseJson(FENCED.exec(text)?.[1] ?? text, MAX_VALUES), 'the reply');
    return { score, reason: reason === '' ? null : reason.slice(0, REASON_CHARS) };
  } catch (thrown) {
    return asFloeError(thrown).message;
  }
}
