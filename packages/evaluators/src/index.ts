/** The exports of `@floe-rl/evaluators` for other packages. */
export { customEvaluator, type EvaluatorKit, type EvaluatorModule, evaluatorOfNodes } from './custom.ts';
export { type CheckedEvaluation, checkedEvaluation, NO_EVALUATION } from './evaluation-check.ts';
export {
  type EpisodeScores,
  type EvaluatedSession,
  type Evaluation,
  type EvaluationContext,
  type Evaluator,
  type EvaluatorLookup,
  type TraceView,
  usesFreshRuntime,
} from './evaluator.ts';
export type { JudgeEngine } from './judge.ts';
export { mathChecker } from './math/checker.ts';
export {
  type FinalEvaluation,
  type PostRunChange,
  type PostRunEvent,
  type PostRunHook,
  type PostRunModule,
  postRunHook,
} from './post-run-hook.ts';
export { type EvaluatorRegistry, evaluatorRegistry } from './registry.ts';
export { isBelowMinimum } from './steps.ts';
