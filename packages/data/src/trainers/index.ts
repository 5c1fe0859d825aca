/** `@floe-rl/data/trainers`: results in the formats of trainers. Does not load readers of Parquet. */
export { ADVANTAGE_METHODS, type AdvantageMethod } from './advantages.ts';
export {
  CONSTRAINED_USES,
  type ConstrainedUse,
  describeFormats,
  ENCODINGS,
  type Encoding,
  type ExportOptions,
  encodeExport,
  FORMAT_NAMES,
  type FormatDescription,
  type FormatName,
  trainerRecords,
} from './registry.ts';
export { type TrainingGroup, type TrainingRow, type TrainingSample, trainingGroups } from './training-row.ts';
