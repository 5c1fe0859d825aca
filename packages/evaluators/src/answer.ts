import { type Clock, FloeError, fieldError, lastBoxed, MIB, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { choiceOf, MAX_TEXT_CHARS, normalText, withoutDelimiters, wordF1 } from './answer-text.ts';
import { folderOf, relativePathSchema } from './carried-paths.ts';
import { isRuntimeFailure } from './commands.ts';
import { type Evaluation, type EvaluationContext, type Evaluator, finalText } from './evaluator.ts';
import type { MathChecker } from './math/checker.ts';
import { lastMatch, PATTERN_FLAGS } from './pattern-match.ts';

const PATH = 'evaluator.config';
const MAX_EXPECTED = 64;
const MAX_EXPECTED_CHARS = 10_000;
/** Maximum number of characters of a mathematical answer. Longer answers are not compared. */
const MAX_MATH_CHARS = 4_000;
/** Maximum size of the file that contains an answer. */
const MAX_FILE_BYTES = MIB;
/** Time limit for the match of a pattern. Legitimate matches take milliseconds, or many times that on a busy machine. */
const PATTERN_LIMIT_MS = 5_000;
/** Maximum number of characters of the answer that the details quote. */
const QUOTED_CHARS = 500;

const configSchema = z.strictObject({
  kind: z
    .enum(['exact', 'choice', 'f1', 'math'])
    .describe(
      'exact: the same text; choice: the letter of a choice; f1: the words that both texts have; math: an equal expression',
    ),
  expected: z
    .union([z.string().max(MAX_EXPECTED_CHARS), z.array(z.string().max(MAX_EXPECTED_CHARS)).min(1).max(MAX_EXPECTED)])
    .describe('the right answer, or several answers each of which is right'),
  from: z
    .enum(['boxed', 'pattern', 'last_message', 'file'])
    .nullable()
    .default(null)
    .describe(
      "where the answer is: the last \\boxed{} of the agent's last message, the last match of `pattern` in it, the whole message, or a file; null: boxed for math, else last_message",
    ),
  pattern: z.string().min(1).nullable().default(null).describe('regular expression; its first group is the answer'),
  file: relativePathSchema.nullable().default(null).describe('path below the workdir'),
  ignore_case: z.boolean().default(false).describe('with exact: whether case is ignored'),
  threshold: z
    .number()
    .gt(0)
    .max(1)
    .nullable()
    .default(null)
    .describe('with f1: the reward is 1 from this value on and else 0; null: the value itself'),
});

type AnswerConfig = Omit<z.output<typeof configSchema>, 'expected' | 'from'> & {
  readonly expected: readonly string[];
  readonly from: NonNullable<z.output<typeof configSchema>['from']>;
};

/** The agent's answer, or the reason why it has none. */
type Found = { readonly answer: string } | { readonly failure: string };

/**
 * Creates the evaluator `answer`, which compares the agent's final answer with the right answer. An answer that is missing or cannot be read
 * has a reward of 0. `math` compares mathematical answers.
 */
export function answerEvaluator(clock: Clock, math: MathChecker | null): Evaluator {
  return {
    name: 'answer',
    freshRuntimeByDefault: false,
    checkConfig(config) {
      parseConfig(config);
    },
    async evaluate(context, signal) {
      const config = parseConfig(context.spec.config);
      const found = await findAnswer(config, context, clock, signal);
      if ('failure' in found) return { reward: 0, details: found };
      const details = { answer: found.answer.slice(0, QUOTED_CHARS) };
      const graded =
        config.kind === 'math' ? await gradeMath(math, config, found.answer, signal) : grade(config, found.answer);
      return { ...graded, details: { ...details, ...graded.details } };
    },
  };
}

function parseConfig(config: Readonly<Record<string, unknown>>): AnswerConfig {
  const { expected, from: given, ...rest } = parseAs(configSchema, config, PATH, PATH);
  const from = given ?? (rest.kind === 'math' ? 'boxed' : 'last_message');
  const parsed = { ...rest, from, expected: typeof expected === 'string' ? [expected] : expected };
  requireWith(parsed, 'pattern', from === 'pattern');
  requireWith(parsed, 'file', from === 'file');
  if (parsed.ignore_case && parsed.kind !== 'exact')
    throw refusal('ignore_case', 'has an effect only with kind: exact');
  if (parsed.threshold !== null && parsed.kind !== 'f1') throw refusal('threshold', 'has an effect only with kind: f1');
  if (parsed.pattern !== null) checkPattern(parsed.pattern);
  if (parsed.kind === 'choice' && !parsed.expected.every((one) => /^[A-Z]$/.test(one))) {
    throw refusal('expected', 'must be a letter from A to Z with kind: choice');
  }
  if (parsed.kind === 'math' && parsed.expected.some((one) => withoutDelimiters(one) === '')) {
    throw refusal('expected', 'must not be empty with kind: math');
  }
  return parsed;
}

function requireWith(config: AnswerConfig, field: 'pattern' | 'file', isUsed: boolean): void {
  if (isUsed && config[field] === null) throw refusal(field, `is required with from: ${field}`);
  if (!isUsed && config[field] !== null) throw refusal(field, `has an effect only with from: ${field}`);
}

function checkPattern(pattern: string): void {
  try {
    new RegExp(pattern, PATTERN_FLAGS);
  } catch (cause) {
    throw refusal('pattern', (cause as Error).message);
  }
}

function refusal(field: string, message: string): FloeError {
  return fieldError(`${PATH}.${field}`, message);
}

async function findAnswer(
  config: AnswerConfig,
  context: EvaluationContext,
  clock: Clock,
  signal: AbortSignal,
): Promise<Found> {
  if (config.from === 'file') return readAnswer(config, context, signal);
  const text = finalText(context.session).slice(-MAX_TEXT_CHARS);
  if (text.trim() === '') return { failure: 'no_answer' };
  if (config.from === 'last_message') return { answer: text };
  if (config.from === 'boxed') return foundOr(lastBoxed(text));
  const matched = await lastMatch(config.pattern ?? '', text, PATTERN_LIMIT_MS, clock, signal);
  return matched.timedOut ? { failure: 'pattern_timeout' } : foundOr(matched.value);
}

function foundOr(answer: string | null): Found {
  return answer === null ? { failure: 'no_answer' } : { answer };
}

async function readAnswer({ file }: AnswerConfig, { runtime }: EvaluationContext, signal: AbortSignal): Promise<Found> {
  try {
    const content = await runtime.readFile(`${folderOf(runtime, null)}/${file}`, MAX_FILE_BYTES, signal);
    return foundOr(content?.toString('utf8').slice(-MAX_TEXT_CHARS) ?? null);
  } catch (thrown) {
    // The agent's runtime refused to read its own file, for example because it is too large.
    if (!isRuntimeFailure(thrown)) throw thrown;
    return { failure: 'answer_unreadable' };
  }
}

function grade({ kind, expected, ignore_case, threshold }: AnswerConfig, answer: string): Evaluation {
  if (kind === 'choice') {
    const choice = choiceOf(answer);
    if (choice === null) return { reward: 0, details: { failure: 'no_choice' } };
    return { reward: expected.includes(choice) ? 1 : 0, details: { choice } };
  }
  const text = normalText(answer, ignore_case);
  const isSame = expected.some((one) => normalText(one, ignore_case) === text);
  if (kind === 'exact') return { reward: isSame ? 1 : 0, details: {} };
  const f1 = wordF1(answer, expected);
  return {
    reward: threshold === null ? f1 : f1 >= threshold ? 1 : 0,
    components: { f1, exact: isSame ? 1 : 0 },
    details: {},
  };
}

async function gradeMath(
  math: MathChecker | null,
  { from, ...config }: AnswerConfig,
  given: string,
  signal: AbortSignal,
): Promise<Evaluation> {
  const extract = from === 'last_message';
  const answer = extract ? given : withoutDelimiters(given);
  const expected = config.expected.map(withoutDelimiters);
  if (expected.includes(answer)) return { reward: 1, details: { verdict: 'identical' } };
  if (answer.length > MAX_MATH_CHARS && !extract) return { reward: 0, details: { failure: 'answer_too_long' } };
  if (math === null) throw new FloeError('evaluator_failed', 'answer: this process cannot compare expressions');
  const question = { expected, answer: answer.slice(-MAX_MATH_CHARS), extract };
  const verdict = await math.check(question, signal);
  if (verdict === 'bad_expected') {
    throw new FloeError('evaluator_failed', 'answer: config.expected: math-verify cannot read an expression in it');
  }
  const failure = verdict === 'timeout' || verdict === 'failed' ? { failure: `comparison_${verdict}` } : {};
  return { reward: verdict === 'equal' ? 1 : 0, details: { verdict, ...failure } };
}
