import { abortAfter, type Clock, FloeError, messageOf, parseAs, raceAbort } from '@floe-rl/core';
import { metadataSchema, type SessionSummary, type TaskRequest } from '@floe-rl/core/schema';
import { z } from 'zod';
import { type CheckedEvaluation, checkedEvaluation } from './evaluation-check.ts';
import type { EvaluatedSession, Evaluation } from './evaluator.ts';

/** Maximum number of characters of a hook's reason for dropping a sample. The reason is stored in a database row. */
const MAX_REASON_CHARS = 1_000;

/** The argument of a post-run hook. The values are not copies, so a hook must not change them. */
export type PostRunEvent = {
  readonly task: TaskRequest;
  readonly session: EvaluatedSession;
  /** The evaluation with the changes of earlier hooks. Without an evaluator its reward is `null`. */
  readonly evaluation: CheckedEvaluation;
  /** The summary of the session with this evaluation, before its artifacts are packed. */
  readonly summary: SessionSummary;
};

/** Changes that a post-run hook makes to an evaluation. Absent fields do not change. `details` are added to the details of the evaluation. */
export type PostRunChange = Partial<Evaluation> & {
  /** The reason why the sample is not trained and does not count in the baseline. */
  readonly drop?: string;
};

/** The export of a module that an operator registers as a post-run hook; see docs/post-run-hooks.md. */
export type PostRunModule = {
  /** Called after the evaluation of each session. Returning nothing changes nothing. */
  postRun(event: PostRunEvent, signal: AbortSignal): PostRunChange | undefined | Promise<PostRunChange | undefined>;
};

/** An evaluation after the post-run hooks. `dropped` is the reason why a hook dropped the sample; `null` when no hook dropped it. */
export type FinalEvaluation = CheckedEvaluation & { readonly dropped: string | null };

const changeSchema = z
  .strictObject({
    reward: z.number().nullable().optional(),
    details: metadataSchema.optional(),
    components: z.record(z.string(), z.number().nullable()).optional(),
    traceRewards: z.record(z.string(), z.number()).optional(),
    stepRewards: z.record(z.string(), z.number()).optional(),
    drop: z.string().min(1).max(MAX_REASON_CHARS).optional(),
  })
  .optional();

export type PostRunHook = {
  readonly name: string;
  /**
   * Runs the hook and returns the evaluation with its changes. Rejects with `evaluator_failed` when the hook fails, exceeds its deadline or
   * returns an invalid value, or with the reason of `signal`.
   */
  run(event: PostRunEvent, dropped: string | null, signal: AbortSignal): Promise<FinalEvaluation>;
};

/**
 * Wraps the post-run hook of an operator's module. `where` names the module in error messages. Throws `setup_failed` for a module that does
 * not export `postRun`.
 */
export function postRunHook(
  name: string,
  where: string,
  module: Readonly<Record<string, unknown>>,
  { clock, timeoutSeconds }: { readonly clock: Clock; readonly timeoutSeconds: number },
): PostRunHook {
  const { postRun } = module;
  if (typeof postRun !== 'function') throw new FloeError('setup_failed', `${where} does not export a function postRun`);
  const run = postRun as PostRunModule['postRun'];
  return {
    name,
    async run(event, dropped, signal) {
      const late = (): FloeError =>
        new FloeError('evaluator_failed', `post-run hook ${name} ran longer than ${timeoutSeconds} s`, { hook: name });
      const limited = abortAfter(clock, timeoutSeconds * 1000, late, signal);
      try {
        // A hook may ignore its signal, so it is not waited for after its deadline.
        const returned = await raceAbort(settled(run, event, limited.signal), limited.signal);
        return changed(name, event, dropped, returned);
      } catch (thrown) {
        limited.signal.throwIfAborted();
        const message = messageOf(thrown);
        throw new FloeError('evaluator_failed', `post-run hook ${name}: ${message}`, { hook: name }, thrown);
      } finally {
        limited.release();
      }
    },
  };
}

/** Calls the hook. Converts an error that it throws synchronously to a rejection. */
async function settled(run: PostRunModule['postRun'], event: PostRunEvent, signal: AbortSignal): Promise<unknown> {
  return run(event, signal);
}

function changed(
  name: string,
  { evaluation, session }: PostRunEvent,
  dropped: string | null,
  returned: unknown,
): FinalEvaluation {
  const { drop = null, details = {}, ...given } = parseAs(changeSchema, returned, 'what postRun returned') ?? {};
  const replaced = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  const merged = { ...evaluation, ...replaced, details: { ...evaluation.details, ...details } };
  return { ...checkedEvaluation(`post-run hook ${name}`, merged, session), dropped: dropped ?? drop };
}
