import { FloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { type AdvantageMethod, rowAdvantages } from './advantages.ts';
import { encodeArrow } from './arrow.ts';
import { refuseImages, type TrainerRecord, type TrainingBatch } from './format.ts';
import { arealTrajectories } from './formats/areal.ts';
import { artTrajectories } from './formats/art.ts';
import { floeRows } from './formats/floe.ts';
import { nemoRlResults } from './formats/nemo-rl.ts';
import { openrlhfExecutions } from './formats/openrlhf.ts';
import { primeRlOptions, primeRlSamples } from './formats/prime-rl.ts';
import { rllmEpisodes } from './formats/rllm.ts';
import { rollOptions, rollRows } from './formats/roll.ts';
import { skyrlOptions, skyrlOutput } from './formats/skyrl.ts';
import { slimeSamples } from './formats/slime.ts';
import { tinkerDatums } from './formats/tinker.ts';
import { trlRollouts, trlSamples } from './formats/trl.ts';
import { verlBatch, verlBatchOptions, verlOutputs } from './formats/verl.ts';
import { imageOptions } from './image-places.ts';
import { encodeJsonLines } from './json-lines.ts';
import { type TrainingGroup, withoutConstrained } from './training-row.ts';

/** What one record of a format stands for: a trace, a sample with all its traces, or all samples of an export. */
type RecordUnit = 'trace' | 'sample' | 'batch';

type TrainerFormat = {
  readonly summary: string;
  readonly record: RecordUnit;
  /** Whether the format requires advantages in its records. */
  readonly needsAdvantages: boolean;
  /**
   * Whether records contain the images of the context. Otherwise traces with images are refused, because their ids do not contain the whole
   * context.
   */
  readonly carriesImages?: true;
  readonly options: z.ZodObject;
  readonly records: (batch: TrainingBatch, options: never) => TrainerRecord[];
};

const noOptions = z.strictObject({});

const FORMATS = {
  floe: {
    summary: "floe's own rows, from which the other formats are made",
    record: 'trace',
    needsAdvantages: false,
    carriesImages: true,
    options: imageOptions,
    records: floeRows,
  },
  slime: {
    summary: "slime's Sample",
    record: 'trace',
    needsAdvantages: false,
    carriesImages: true,
    options: imageOptions,
    records: slimeSamples,
  },
  verl: {
    summary: "verl's AgentLoopOutput",
    record: 'trace',
    needsAdvantages: false,
    carriesImages: true,
    options: imageOptions,
    records: verlOutputs,
  },
  verl_batch: {
    summary: "the columns of verl's DataProto, padded",
    record: 'batch',
    needsAdvantages: false,
    options: verlBatchOptions,
    records: verlBatch,
  },
  nemo_rl: {
    summary: "NeMo-RL's rollout result with message_log",
    record: 'trace',
    needsAdvantages: false,
    options: noOptions,
    records: nemoRlResults,
  },
  skyrl: {
    summary: "SkyRL's GeneratorOutput",
    record: 'batch',
    needsAdvantages: false,
    options: skyrlOptions,
    records: skyrlOutput,
  },
  tinker: {
    summary: "Tinker's Datum",
    record: 'trace',
    needsAdvantages: true,
    options: noOptions,
    records: tinkerDatums,
  },
  prime_rl: {
    summary: "prime-rl's TrainingSample",
    record: 'trace',
    needsAdvantages: true,
    options: primeRlOptions,
    records: primeRlSamples,
  },
  trl_async: {
    summary: "the RolloutSample of TRL's AsyncGRPOTrainer",
    record: 'trace',
    needsAdvantages: true,
    options: noOptions,
    records: trlSamples,
  },
  trl: {
    summary: "the reply of a rollout_func of TRL's GRPOTrainer",
    record: 'batch',
    needsAdvantages: false,
    options: noOptions,
    records: trlRollouts,
  },
  areal: {
    summary: "AReaL's trajectory dict",
    record: 'trace',
    needsAdvantages: false,
    options: noOptions,
    records: arealTrajectories,
  },
  roll: {
    summary: "a row of ROLL's DataProto, padded",
    record: 'trace',
    needsAdvantages: false,
    options: rollOptions,
    records: rollRows,
  },
  rllm: {
    summary: "rLLM's Episode",
    record: 'sample',
    needsAdvantages: false,
    options: noOptions,
    records: rllmEpisodes,
  },
  openrlhf: {
    summary: "the reply of OpenRLHF's AgentExecutorBase.execute",
    record: 'sample',
    needsAdvantages: false,
    options: noOptions,
    records: openrlhfExecutions,
  },
  art: {
    summary: "ART's Trajectory",
    record: 'sample',
    needsAdvantages: false,
    options: noOptions,
    records: artTrajectories,
  },
} as const satisfies Record<string, TrainerFormat>;

export type FormatName = keyof typeof FORMATS;

export const FORMAT_NAMES = Object.keys(FORMATS) as FormatName[];

/** How an export treats tokens that a constraint restricted. */
export const CONSTRAINED_USES = ['train', 'mask'] as const;
export type ConstrainedUse = (typeof CONSTRAINED_USES)[number];

export type ExportOptions = {
  readonly format: FormatName;
  /** How advantages are computed. Default: `grpo` for a format that needs advantages, else `none`. */
  readonly advantages?: AdvantageMethod;
  /** Whether a sample's advantage is divided by its number of traces. Default: false. */
  readonly perSession?: boolean;
  /** Whether each reply has an advantage of its own. Default: false. */
  readonly perTurn?: boolean;
  /**
   * What happens to trained tokens that the policy sampled under a constraint, such as a forced tool call: `train` leaves the choice to the
   * task's builder, `mask` sets their mask to 0. Default: `train`.
   */
  readonly constrained?: ConstrainedUse;
  /** Options of the format. Values may be texts, as on a command line. */
  readonly options?: Readonly<Record<string, unknown>>;
};

export type FormatDescription = Pick<TrainerFormat, 'summary' | 'record' | 'needsAdvantages'> & {
  readonly name: FormatName;
  /** Name and description of each option. */
  readonly options: readonly { readonly name: string; readonly description: string }[];
};

export function describeFormats(): FormatDescription[] {
  return FORMAT_NAMES.map((name) => {
    const { summary, record, needsAdvantages, options }: TrainerFormat = FORMATS[name];
    const described = Object.entries(options.shape as Record<string, z.ZodType>).map(([option, schema]) => ({
      name: option,
      description: schema.description ?? '',
    }));
    return { name, summary, record, needsAdvantages, options: described };
  });
}

/** The encodings of an export: JSON lines, or Arrow's IPC stream format. */
export const ENCODINGS = ['jsonl', 'arrow'] as const;
export type Encoding = (typeof ENCODINGS)[number];

/** The fields of all formats whose numbers are integers. */
const INTEGER_FIELDS: ReadonlySet<string> = new Set([
  'action_ranges',
  'env_ids',
  'final_policy_version',
  'group_id',
  'group_index',
  'group_ids',
  'idx',
  'index',
  'initial_policy_version',
  'length',
  'loss_multiplier',
  'max_global_steps',
  'min_global_steps',
  'model_version',
  'num_turns',
  'repetition_id',
  'response_length',
  'rollout_id',
  'sample_index',
  'session_id',
  'shape',
  'step',
  'trace_count',
  'trace_index',
  'weight_version',
]);

/** Makes the records of a trainer's format and encodes them. Throws as {@link trainerRecords} does. */
export function encodeExport(groups: readonly TrainingGroup[], request: ExportOptions, encoding: Encoding): Buffer {
  const records = trainerRecords(groups, request);
  return encoding === 'jsonl' ? encodeJsonLines(records) : encodeArrow(records, INTEGER_FIELDS);
}

/**
 * Makes the records of a trainer's format from groups. Throws `unsupported` for an unknown format and for data that the format cannot carry,
 * and `schema_violation` for a wrong option.
 */
export function trainerRecords(groups: readonly TrainingGroup[], request: ExportOptions): TrainerRecord[] {
  const format: TrainerFormat | undefined = Object.hasOwn(FORMATS, request.format)
    ? FORMATS[request.format]
    : undefined;
  if (format === undefined) {
    const names = FORMAT_NAMES.join(', ');
    throw new FloeError(
      'unsupported',
      `there is no format ${JSON.stringify(request.format)}; the formats are ${names}`,
    );
  }
  const options = parseAs(format.options, request.options ?? {}, `options of the format ${request.format}`);
  const method = request.advantages ?? (format.needsAdvantages ? 'grpo' : 'none');
  const { perSession = false, perTurn = false, constrained = 'train' } = request;
  const used = constrained === 'mask' ? groups.map(withoutConstrained) : groups;
  const batch = {
    groups: used.map((group) => ({ group, advantages: rowAdvantages(group, { method, perSession, perTurn }) })),
  };
  if (format.carriesImages !== true) refuseImages(batch, request.format);
  return format.records(batch, options as never);
}
