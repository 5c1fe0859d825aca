import { parseAs } from '@floe-rl/core';
import { present, type RequestNotes, refuseUnless } from './notes.ts';
import { type PolarEvaluator, polarEvaluatorSchema, polarHarborSchema } from './schema.ts';

const CONFIG = 'evaluator.config';
const NO_RUBRIC =
  'floe has no harbor_rubric, whose judge scores each trace and is at an address of the task; use multi with the evaluators harbor and judge, and name the judge in an engine pool of the nodes';

type EvaluatorFields = {
  readonly strategy: string;
  readonly config: Record<string, unknown>;
  readonly env: Record<string, string>;
  readonly refresh_runtime: boolean;
};

/**
 * Returns the evaluator of a floe task for a Polar evaluator; the caller validates it. A Polar evaluator becomes the floe evaluator that does
 * the same work. Any other name is passed on as the name of a floe evaluator. The known options are taken from the classes in
 * `src/polar/trajectory/evaluator/` of NVIDIA-NeMo/ProRL-Agent-Server at 063c948. Polar refuses options that these classes do not have.
 */
export function evaluatorOf(spec: PolarEvaluator, notes: RequestNotes): EvaluatorFields {
  notes.warnUnknown('evaluator', spec, polarEvaluatorSchema.shape);
  const fields = {
    strategy: spec.strategy,
    config: present(spec.config),
    env: spec.env ?? {},
    refresh_runtime: spec.refresh_runtime,
  };
  if (spec.strategy === 'swebench_harness') return sweBench(fields, notes);
  refuseUnless(spec.strategy !== 'harbor_rubric', 'evaluator.strategy', NO_RUBRIC);
  // Tasks may also name floe's own options of the evaluator, which have another name for the tests.
  if (spec.strategy === 'harbor' && !('tests' in fields.config)) return harbor(fields, notes);
  return fields;
}

function sweBench(fields: EvaluatorFields, notes: RequestNotes): EvaluatorFields {
  if (!fields.refresh_runtime) {
    notes.warn('evaluator.refresh_runtime', 'is ignored: swebench_harness always grades in a fresh runtime');
  }
  return { ...fields, strategy: 'swebench', refresh_runtime: true };
}

function harbor(fields: EvaluatorFields, notes: RequestNotes): EvaluatorFields {
  const parsed = parseAs(polarHarborSchema, fields.config, 'body', CONFIG);
  const { tests_dir, verifier_timeout, upload_attempts, upload_retry_backoff_seconds, ...config } = parsed;
  for (const [key, value] of Object.entries({ upload_attempts, upload_retry_backoff_seconds })) {
    if (value !== undefined) notes.warn(`${CONFIG}.${key}`, 'is ignored: floe repeats the session when its node fails');
  }
  refuseUnless(
    !fields.refresh_runtime || 'artifacts' in config,
    'evaluator.refresh_runtime',
    `harbor grades in the runtime of the agent; set false, or name the files for a fresh runtime in ${CONFIG}.artifacts`,
  );
  return {
    ...fields,
    strategy: 'harbor',
    config: { grading: 'polar', ...present(config), tests: [tests_dir], timeout: verifier_timeout },
  };
}
